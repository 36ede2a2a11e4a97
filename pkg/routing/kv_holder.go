package routing

import "slices"

// moveToHolder leaves of the workers that may take a request only Request.Holder, if that is fit for it
// and has a place in its batch: nothing of the prompt is computed or sent again there. Else it
// leaves all, and what the holder has counts as the prefix that it is.
func (rt *Router) moveToHolder(s *search, decodes, aggregatedPrefills *candidates) (d, w *candidates) {
	holder := s.request.Holder
	if holder == (Ref{}) {
		return decodes, aggregatedPrefills
	}
	for _, list := range []*candidates{decodes, aggregatedPrefills} {
		i := slices.IndexFunc(list.all, func(c candidate) bool { return c.worker.ref == holder })
		if i < 0 {
			continue
		}
		c := list.all[i]
		if c.fitness != fit || c.placeMs > 0 || c.misses {
			break
		}
		only, none := rt.lists.next(), rt.lists.next()
		only.all, only.fitness, only.skipped = append(only.all, c), fit, list.usable()-1
		if list == decodes {
			return only, none
		}
		return none, only
	}
	return decodes, aggregatedPrefills
}
