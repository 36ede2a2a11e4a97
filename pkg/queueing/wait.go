package queueing

import (
	"errors"
	"math"
)

// Queue is what requests see that wait for one of several equal servers, first come, first
// served.
type Queue struct {
	// Utilisation is the share of the time in which a server is busy.
	Utilisation float64
	// Waits is the probability that a request waits at all.
	Waits float64
	// WaitSeconds is the mean wait, of the requests that do not wait as well.
	WaitSeconds float64
}

// Quantile is the wait that a share q of requests, 0 to below 1, does not exceed: 0 if that
// share does not wait at all.
//
// It takes the wait of those that wait to be exponential, as it is in M/M/c; in M/G/c that
// holds as utilisation nears 1. Source: J. Kingman, "The single server queue in heavy
// traffic" (1961).
func (w Queue) Quantile(q float64) float64 {
	if !(w.Waits > 1-q) {
		return 0
	}
	return w.WaitSeconds / w.Waits * math.Log(w.Waits/(1-q))
}

// Exceeds is the probability that a request waits longer than the given time. It assumes what
// Quantile does.
func (w Queue) Exceeds(seconds float64) float64 {
	switch {
	case seconds < 0:
		return 1
	case w.WaitSeconds == 0:
		return 0
	}
	return w.Waits * math.Exp(-seconds*w.Waits/w.WaitSeconds)
}

// MM1 is a queue for one server.
//
// It assumes that requests come at random (Poisson) and that service times are exponential.
// Source: L. Kleinrock, "Queueing Systems", volume 1 (1975), section 3.2.
func MM1(rate, service float64) (Queue, error) { return MMc(rate, service, 1) }

// MMc is a queue for several servers.
//
// It assumes that requests come at random (Poisson) and that service times are exponential.
// Source: A. Erlang (1917); Kleinrock, volume 1, section 3.5.
func MMc(rate, service float64, servers int) (Queue, error) {
	return GGc(rate, Service{service, 1}, 1, servers)
}

// MG1 is a queue for one server whose service times have any distribution. Its mean wait is
// exact.
//
// It assumes that requests come at random (Poisson). Source: Pollaczek and Khinchine (1930);
// Kleinrock, volume 1, section 5.6.
func MG1(rate float64, service Service) (Queue, error) { return GGc(rate, service, 1, 1) }

// GGc is a queue for several servers, with any distribution of service times and of the
// times between requests, whose SCV is arrivalSCV: 1 if they come at random, more if they
// come in bursts. The mean wait is that of M/M/c times the mean of the two SCVs: an
// approximation, exact at random arrivals for one server and for exponential times.
//
// It assumes that neither depends on what came before. Source: A. Allen, "Probability,
// Statistics, and Queueing Theory" (1990), section 5.2.3: the approximation of Allen and
// Cunneen.
func GGc(rate float64, service Service, arrivalSCV float64, servers int) (Queue, error) {
	load, utilisation, err := busy(rate, service.Seconds, servers)
	if err := errors.Join(err, number("variation of service", service.SCV), number("variation of arrivals", arrivalSCV)); err != nil {
		return Queue{}, err
	}
	w := Queue{Utilisation: utilisation, Waits: erlangC(load, servers)}
	w.WaitSeconds = w.Waits * service.Seconds / (float64(servers) * (1 - utilisation)) * (arrivalSCV + service.SCV) / 2
	return w, nil
}

// erlangB is the share of requests that find all servers busy, and leave.
//
// It assumes that requests come at random (Poisson); service times may have any
// distribution. Source: A. Erlang (1917), by the recursion over the servers, which needs
// no factorial.
func erlangB(load float64, servers int) float64 {
	lost := 1.0
	for n := range servers {
		lost *= load
		lost /= float64(n+1) + lost
	}
	return lost
}

// erlangC is the probability that a request finds all servers busy, and waits. It assumes
// what MMc does. Source: A. Erlang (1917), from erlangB.
func erlangC(load float64, servers int) float64 {
	lost := erlangB(load, servers)
	return lost / (1 - load/float64(servers)*(1-lost))
}
