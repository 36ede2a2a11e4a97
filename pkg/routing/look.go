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
	lookMost    = 64           // workers of a role that it looks at, at most
	holdersMost = lookMost / 4 // of those, how many for what they hold
)

// look filters and scores the workers of a role. All of them are looked at unless those of a
// sample may take the request, so that no sample refuses it.
func (rt *Router) look(s *search, role controlv1.Role, to *worker) *candidates {
	c := rt.some(s, role, rt.ofRole(role), to)
	rt.score(s, role, c.all)
	return c
}

// some filters workers, or a sample of them.
func (rt *Router) some(s *search, role controlv1.Role, workers []*worker, to *worker) *candidates {
	if len(workers) > lookMost {
		if c := rt.filter(s, role, rt.sample(s, workers), to); c.fitness == fit {
			c.passed = len(workers) - len(c.all)
			return c
		}
	}
	return rt.filter(s, role, workers, to)
}

// sample draws lookMost workers of more, valid until its next call.
func (rt *Router) sample(s *search, workers []*worker) []*worker {
	rt.samples++
	out := rt.sampled[:0]
	add := func(w *worker) {
		if w.sampled != rt.samples {
			w.sampled = rt.samples
			out = append(out, w)
		}
	}
	for _, h := range rt.holders(s, workers[0].role()) {
		add(h.worker)
	}
	n := len(workers)
	stride := 1 + rt.random.IntN(n-1)
	for common(stride, n) > 1 {
		stride = 1 + rt.random.IntN(n-1)
	}
	for at := rt.random.IntN(n); len(out) < lookMost; at = (at + stride) % n {
		add(workers[at])
	}
	rt.sampled = out
	return out
}

func common(a, b int) int {
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
	out := rt.held[:0]
	before := func(a, b holder) int {
		return cmp.Or(cmp.Compare(b.tokens, a.tokens), byID(a.worker, b.worker))
	}
	for _, kind := range rt.kinds() {
		p := rt.prefix(s, kind)
		if p == nil {
			continue
		}
		for id, blocks := range p.held {
			w := rt.workers[id]
			if w == nil || w.role() != role || w.blockKey() != kind.blockKey() {
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
	rt.held = out
	return out
}
