// Package queueing has the formulas that tell how long requests wait: Little's law, M/M/1, M/M/c (Erlang C), M/G/1 (Pollaczek–Khinchine),
// G/G/c (Allen–Cunneen), servers that batch, Amdahl's law and the tail of a fan-out. Each
// function names what it assumes.
//
// Rates are in requests a second and times in seconds, unless a name says otherwise; every
// function of both works in any unit that the two share. Load is rate times service time:
// the mean number of busy servers, in erlangs. The squared coefficient of variation (SCV) of
// a time is its variance over its mean squared: 0 for a constant, 1 for an exponential one.
//
// A queue that grows without bound is an error that wraps ErrUnstable. Other errors are of
// arguments: negative, infinite or not a number.
//
// Anything may import the package. It imports nothing of this repository, keeps no state
// and starts no goroutines; its functions may be called concurrently.
package queueing

import (
	"errors"
	"fmt"
	"math"
)

// ErrUnstable is of a queue that grows without bound: as much work arrives as the servers
// can do, or more.
var ErrUnstable = errors.New("the queue grows without bound")

// MaxServers is the most servers that the functions take: they need a step for each.
const MaxServers = 1 << 20

// number checks that an argument is a finite number from 0.
func number(name string, v float64) error {
	if !(v >= 0) || math.IsInf(v, 1) {
		return fmt.Errorf("the %s is %v: it must be 0 or more, and finite", name, v)
	}
	return nil
}

func serverCount(servers int) error {
	if servers < 1 || servers > MaxServers {
		return fmt.Errorf("%d servers: there must be 1 to %d", servers, MaxServers)
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
