package queueing

import (
	"errors"
	"fmt"
	"sort"
)

// Limits are what a pool of servers must keep.
type Limits struct {
	// Utilisation is the highest, above 0 and below 1; 0: any below 1.
	Utilisation float64
	// WaitSeconds is the longest wait of the share Quantile of requests; +Inf: any.
	WaitSeconds float64
	Quantile    float64
}

// Servers is the fewest servers that keep the limits, at least 1, by GGc.
func Servers(rate float64, service Service, arrivalSCV float64, limits Limits) (int, error) {
	if limits.Utilisation == 0 {
		limits.Utilisation = 1
	}
	switch {
	case !(limits.Utilisation > 0 && limits.Utilisation <= 1):
		return 0, fmt.Errorf("the highest utilisation is %v: it must be above 0, and at most 1", limits.Utilisation)
	case !(limits.Quantile >= 0 && limits.Quantile < 1):
		return 0, fmt.Errorf("the quantile is %v: it must be 0 to below 1", limits.Quantile)
	case !(limits.WaitSeconds >= 0):
		return 0, fmt.Errorf("the longest wait is %v: it must be 0 or more", limits.WaitSeconds)
	}
	if err := errors.Join(number("rate", rate), number("service time", service.Seconds),
		number("variation of service", service.SCV), number("variation of arrivals", arrivalSCV)); err != nil {
		return 0, err
	}
	keeps := func(servers int) bool {
		w, err := GGc(rate, service, arrivalSCV, servers)
		return err == nil && w.Utilisation <= limits.Utilisation && w.Quantile(limits.Quantile) <= limits.WaitSeconds
	}
	load := rate * service.Seconds / limits.Utilisation
	if !(load < MaxServers) {
		return 0, fmt.Errorf("%.4g servers would be needed: there can be %d", load, MaxServers)
	}
	low := max(int(load), 1)
	high := low
	for !keeps(high) {
		if high == MaxServers {
			return 0, fmt.Errorf("%d servers do not keep the wait below %.4g s", MaxServers, limits.WaitSeconds)
		}
		low, high = high+1, min(2*high, MaxServers)
	}
	return low + sort.Search(high-low, func(i int) bool { return keeps(low + i) }), nil
}
