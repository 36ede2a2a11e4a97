package integration_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// chaosReport is what TestChaos did and what came of it.
type chaosReport struct {
	mesh   *chaosMesh
	load   *chaosLoad
	began  time.Time
	faults map[string]map[string]int // by kind and name
}

func (r *chaosReport) did(f chaosFault) {
	if r.faults[f.kind] == nil {
		r.faults[f.kind] = make(map[string]int)
	}
	r.faults[f.kind][f.name]++
}

// total is how many faults there were of a kind.
func total(byName map[string]int) (n int) {
	for _, times := range byName {
		n += times
	}
	return n
}

// String is the report, a line for each figure.
func (r *chaosReport) String() string {
	var out strings.Builder
	faults := 0
	for _, byName := range r.faults {
		faults += total(byName)
	}
	fmt.Fprintf(&out, "chaos report: seed %d, %.0f s, %d faults\n", *chaosSeed, time.Since(r.began).Seconds(), faults)
	line := func(n any, what string) { fmt.Fprintf(&out, "%8v  %s\n", n, what) }
	for _, kind := range slices.Sorted(maps.Keys(r.faults)) {
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(r.faults[kind])) {
			parts = append(parts, fmt.Sprintf("%s: %d", name, r.faults[kind][name]))
		}
		line(total(r.faults[kind]), kind+" ("+strings.Join(parts, "; ")+")")
	}
	l := r.load
	l.mu.Lock()
	defer l.mu.Unlock()
	line(l.requests(), "requests")
	line(l.served, "served whole")
	line(l.left, "given up by their clients")
	line(total(l.failures), fmt.Sprintf("failed with a status %v", l.failuresText()))
	line(l.endless, "without an end within "+timeout.String())
	line(l.tokens, "tokens compared")
	line(l.wrong, "answers with a wrong token")
	line(r.stranded(), "stranded: requests in flight or blocks in use when all had ended")
	return out.String()
}

// stranded is how many requests and blocks of KV are in use by what the routers know.
func (r *chaosReport) stranded() any {
	n, seen := uint64(0), make(map[string]bool)
	for _, router := range r.mesh.routers {
		if router.client == nil {
			return "unknown"
		}
		workers, err := router.client.Workers(controlv1.Role_ROLE_UNSPECIFIED)
		if err != nil {
			return "unknown"
		}
		for _, w := range workers {
			n += uint64(w.GetInFlight())
			if load := w.GetLoad(); load != nil && w.GetConnected() && !seen[w.GetRecord().GetId()] {
				seen[w.GetRecord().GetId()] = true // both routers have the same report
				n += uint64(load.GetRunningSequences()) + uint64(load.GetWaitingSequences()) + uint64(load.GetBlocksTotal()-load.GetBlocksFree())
			}
		}
	}
	return n
}
