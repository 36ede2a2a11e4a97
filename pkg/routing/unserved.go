package routing

import (
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// Disaggregated reports whether the policy gives every request that asks for no mode to two
// workers.
func (rt *Router) Disaggregated() bool {
	return rt.policy.mode == inferencev1.Mode_MODE_DISAGGREGATED
}

// Unserved says why a request that asks for no mode could not be served by the workers there are,
// however little they have to do, for people; empty: it could.
func (rt *Router) Unserved() string {
	type kind struct {
		version Version
		layout  uint64
	}
	decodes, prefills := make(map[kind]bool), make(map[kind]bool)
	aggregates := false
	for _, w := range rt.order {
		if w.isStore() || !w.connected || w.draining || rt.notServed(w) != "" {
			continue
		}
		of := decodes
		if w.role == controlv1.Role_ROLE_PREFILL {
			of, aggregates = prefills, aggregates || w.takesAggregated
		}
		of[kind{w.version, w.layoutDigest}] = true
	}
	switch {
	case !rt.Disaggregated() && (aggregates || len(decodes) > 0):
		return ""
	case !rt.Disaggregated():
		return "the router is connected to no worker that decodes"
	case len(decodes) == 0:
		return "the router is connected to no decode worker, and its policy gives no whole requests to prefill workers"
	case len(prefills) == 0:
		return "the router is connected to no prefill worker, and its policy gives no whole requests to decode workers"
	}
	for k := range decodes {
		if prefills[k] {
			return ""
		}
	}
	return "none of the prefill workers has KV of the same layout as a decode worker, and the policy gives requests to two workers"
}
