package routing

import (
	"fmt"
	"slices"
)

// reportForeign says which workers of a model are left out for their version, and
// which are not any more.
func (rt *Router) reportForeign(m Model) {
	for _, w := range rt.order {
		if foreign := !rt.serves(m.Name, w.version); !w.isStore() && w.of(m) && foreign != w.foreign {
			w.foreign = foreign
			rt.out = append(rt.out, Foreign{Worker: w.ref, Role: w.role, Model: m.Name, Version: w.version, Served: rt.Served(m.Name), Excluded: foreign})
		}
	}
}

// ForeignWorkers is how many workers are left out for their version.
func (rt *Router) ForeignWorkers() int {
	n := 0
	for _, w := range rt.order {
		if w.foreign {
			n++
		}
	}
	return n
}

// otherVersion says why a worker is left out that is not of the version looked for.
func (rt *Router) otherVersion(s *search, w *worker) string {
	switch v := w.version; {
	case s.request.Version != (Version{}):
		return fmt.Sprintf("its weights or arithmetic are %s, but this request, or the call that it is part of, began with %s", v, s.version)
	case rt.serves(s.request.Model, v):
		return fmt.Sprintf("this request is for version %s", s.version)
	}
	return rt.foreignText(s.request.Model, w)
}

func (rt *Router) foreignText(model string, w *worker) string {
	return fmt.Sprintf("its weights or arithmetic are %s, but model %s is served with %s; see 'tandem policy'", w.version, model, VersionsText(rt.Served(model)))
}

// notServed says why a worker gets no requests, whatever its load; empty: it does.
func (rt *Router) notServed(w *worker) string {
	if w.isStore() {
		return ""
	}
	why := "it serves a model that this router does not serve: " + w.record.GetModel()
	for _, m := range rt.config.Models {
		if !w.of(m) {
			continue
		}
		served := rt.Served(m.Name)
		if len(served) == 0 || slices.Contains(served, w.version) {
			return ""
		}
		why = rt.foreignText(m.Name, w)
	}
	return why
}
