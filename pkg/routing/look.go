package routing

import (
	"cmp"
	"slices"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// Of very many workers a search looks at some: those that hold the most of the prompt, and others
// by chance. The best of so many is near the best of all (Mitzenmacher, 2001), and is found in the
// time that a few of them take.
const (
	lookMost    = 64 // workers of a role that it looks at, at most
	holdersPart = 4  // of those, one of so many for what it holds
	holdersMost = lookMost / holdersPart
)

// look filters and scores the workers of a role. All of them are looked at unless those of a
// sample may take the request, so that no sample refuses it.
func (rt *Router) look(s *search, role controlv1.Role, to *worker) *candidates {
	c := rt.filterSome(s, role, rt.ofRole(role), to)
	rt.score(s, role, c.all)
	return c
}

// filterSome filters workers, or a sample of them.
func (rt *Router) filterSome(s *search, role controlv1.Role, workers []*worker, to *worker) *candidates {
	if len(workers) > lookMost {
		aggregated := workers[0].role != role // prefill workers are to do what decode workers do
		if c := rt.filter(s, role, rt.sample(s, workers, lookMost, func(w *worker) bool { return w.takesAggregated || !aggregated }), to); c.fitness == fit {
			c.skipped = len(workers) - len(c.all)
			return c
		}
	}
	rt.warm(workers)
	return rt.filter(s, role, workers, to)
}

// warm has the processor read what a search needs of workers.
func (rt *Router) warm(workers []*worker) {
	for _, w := range workers {
		rt.warmed += w.fetch()
	}
}

// sample draws most workers of more, valid until its next call, of those that may. They are of one
// role, of which others may hold the prompt too.
func (rt *Router) sample(s *search, workers []*worker, most int, may func(*worker) bool) []*worker {
	rt.samples++
	out := rt.sampled[:0]
	add := func(w *worker) {
		if w.sampled != rt.samples && may(w) {
			w.sampled = rt.samples
			out = append(out, w)
		}
	}
	for _, h := range rt.holders(s, workers[0].role) {
		if add(h.worker); len(out) == most/holdersPart {
			break
		}
	}
	n := len(workers)
	stride := 1 + rt.random.IntN(n-1)
	for gcd(stride, n) > 1 {
		stride = 1 + rt.random.IntN(n-1)
	}
	for at, left := rt.random.IntN(n), n; left > 0 && len(out) < most; at, left = (at+stride)%n, left-1 {
		add(workers[at])
	}
	rt.sampled = out
	rt.warm(out)
	return out
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// holder is a worker that holds so many tokens of a prompt.
type holder struct {
	worker *worker
	tokens int
}

// holders are the workers of a role that hold the most of a request's prompt, the most first.
func (rt *Router) holders(s *search, role controlv1.Role) []holder {
	out := rt.holderScratch[:0]
	before := func(a, b holder) int {
		return cmp.Or(cmp.Compare(b.tokens, a.tokens), byID(a.worker, b.worker))
	}
	for _, kind := range rt.kinds() {
		p := rt.prefix(s, kind)
		if p == nil {
			continue
		}
		for id, blocks := range p.cached {
			w := rt.workers[id]
			if w == nil || w.role != role || w.blockKey() != kind.blockKey() {
				continue
			}
			h := holder{w, blocks * w.blockTokens}
			if len(out) == holdersMost && before(out[holdersMost-1], h) < 0 {
				continue
			}
			at, _ := slices.BinarySearchFunc(out, h, before)
			if out = slices.Insert(out, at, h); len(out) > holdersMost {
				out = out[:holdersMost]
			}
		}
	}
	rt.holderScratch = out
	return out
}
