package queueing

import (
	"errors"
	"fmt"
	"math"
)

// ErrUnstable is of a queue that grows without bound: as much work arrives as the servers
// can do, or more.
var ErrUnstable = errors.New("the queue grows without bound")

// maxServers is the most servers that the functions take: they need a step for each.
const maxServers = 1 << 20

// number checks that an argument is a finite number from 0.
func number(name string, v float64) error {
	if !(v >= 0) || math.IsInf(v, 1) {
		return fmt.Errorf("the %s is %v: it must be 0 or more, and finite", name, v)
	}
	return nil
}

func serverCount(servers int) error {
	if servers < 1 || servers > maxServers {
		return fmt.Errorf("%d servers: there must be 1 to %d", servers, maxServers)
	}
	return nil
}

// busy is the load of servers and their utilisation, below 1.
func busy(rate, service float64, servers int) (load, utilisation float64, err error) {
	if err := errors.Join(number("rate", rate), number("service time", service), serverCount(servers)); err != nil {
		return 0, 0, err
	}
	load = rate * service
	utilisation = load / float64(servers)
	if !(utilisation < 1) {
		return 0, 0, fmt.Errorf("%w: utilisation is %.4g, and must stay below 1", ErrUnstable, utilisation)
	}
	return load, utilisation, nil
}
