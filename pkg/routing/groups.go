package routing

import (
	"slices"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// groups are the workers that have answered, put together by what searches ask for.
type groups struct {
	roles              map[controlv1.Role][]*worker // each by id
	aggregatedPrefills []*worker                    // those that take aggregated requests, by id
	// aggregatedPrefillsOf is how many of those get requests for a model, by its name, and taking how many
	// of a role get requests.
	aggregatedPrefillsOf map[string]int
	taking               map[controlv1.Role]int
	kinds                []*worker // one of each model, version and block size, without block stores
	// contextTokens is the longest context of the workers of a version that decode.
	contextTokens map[Version]int
}

func (rt *Router) groups() *groups {
	if rt.grouped != nil {
		return rt.grouped
	}
	g := &groups{
		roles: make(map[controlv1.Role][]*worker), aggregatedPrefillsOf: make(map[string]int),
		taking: make(map[controlv1.Role]int), contextTokens: make(map[Version]int),
	}
	for _, w := range rt.order {
		g.roles[w.role] = append(g.roles[w.role], w)
		if w.takesAggregated {
			g.aggregatedPrefills = append(g.aggregatedPrefills, w)
		}
		takes := false
		for _, m := range rt.config.Models {
			if rt.takes(w, m) {
				takes = true
				if w.takesAggregated {
					g.aggregatedPrefillsOf[m.Name]++
				}
			}
		}
		if takes {
			g.taking[w.role]++
		}
		if w.role == controlv1.Role_ROLE_DECODE || w.takesAggregated {
			g.contextTokens[w.version] = max(g.contextTokens[w.version], w.contextTokens)
		}
		same := func(o *worker) bool {
			return o.blockKey() == w.blockKey() && o.model == w.model
		}
		if !w.isStore() && !slices.ContainsFunc(g.kinds, same) {
			g.kinds = append(g.kinds, w)
		}
	}
	rt.grouped = g
	return g
}

// ofRole are the workers of a role that have answered, by id.
func (rt *Router) ofRole(role controlv1.Role) []*worker { return rt.groups().roles[role] }

// kinds has one worker of each model, version and block size, the first by id.
func (rt *Router) kinds() []*worker { return rt.groups().kinds }
