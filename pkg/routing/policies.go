package routing

import (
	"cmp"
	"maps"
	"slices"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/spelling"
)

// policy is how workers are chosen among those that may take a request.
type policy struct {
	// near are those of options between which chance decides. There are options, and they
	// may be put into another order.
	near func(rt *Router, options []*candidate) []*candidate
	// waitsAtRouter: a request waits at the router rather than at a worker.
	waitsAtRouter bool
	// mode is that of requests that ask for none; MODE_AUTO: whatever costs less.
	mode inferencev1.Mode
}

// DefaultPolicy is what Config.Policy is unless somebody says otherwise.
const DefaultPolicy = "slo"

var policies = map[string]policy{
	DefaultPolicy:     {leastCost, true, inferencev1.Mode_MODE_AUTO},
	"aggregated":      {leastCost, true, inferencev1.Mode_MODE_AGGREGATED},
	"disaggregated":   {leastCost, true, inferencev1.Mode_MODE_DISAGGREGATED},
	"least-loaded":    {leastLoaded, false, inferencev1.Mode_MODE_AUTO},
	"prefix-affinity": {prefixAffinity, false, inferencev1.Mode_MODE_AUTO},
	"round-robin":     {roundRobin, false, inferencev1.Mode_MODE_AUTO},
}

// Policies are the names of all policies, in order.
func Policies() []string { return slices.Sorted(maps.Keys(policies)) }

// CheckPolicy refuses a name that no policy has.
func CheckPolicy(name string) error { return spelling.Check("policy", name, Policies()) }

// policyOf is the policy of a name, or the default.
func policyOf(name string) policy {
	if p, is := policies[name]; is {
		return p
	}
	return policies[DefaultPolicy]
}

// mode is the mode that a request asks for, or else the policy's.
func (rt *Router) mode(r *Request) inferencev1.Mode {
	if r.Mode == inferencev1.Mode_MODE_AGGREGATED || r.Mode == inferencev1.Mode_MODE_DISAGGREGATED {
		return r.Mode
	}
	return rt.policy.mode
}

// least are the candidates of the least value.
func least[V cmp.Ordered](options []*candidate, of func(*candidate) V) []*candidate {
	value := of(options[0])
	for _, c := range options[1:] {
		value = min(value, of(c))
	}
	return slices.DeleteFunc(options, func(c *candidate) bool { return of(c) > value })
}
