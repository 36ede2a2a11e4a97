package routing

import "github.com/tandem-serving/tandem/pkg/kvcache"

// A worker holds the blocks of a prefix once for all sequences that have them in their tables. So
// a request is charged with the blocks that it adds to those of another one of this router that
// runs there. When that one ends, who shared blocks with it holds them on and is charged with them.

// ownLoad is what a request of this router takes of a worker.
type ownLoad struct {
	requestLoad
	sharing
}

// sharing is what a request shares with another one at a worker.
type sharing struct {
	hashes  []kvcache.Hash // of the whole blocks of its own prompt
	with    *ownLoad       // which is charged with its first blocks, or shares them in turn; nil: none
	shared  int            // so many, which are not in its own blocks
	sharers int            // how many have it as with
}

// share finds the request at w which has the most first blocks in common with that of a search,
// of those that w holds by now. It has to have begun: before, it holds none, and what is cached
// counts as free.
func (rt *Router) share(s *search, w *worker) (out sharing) {
	if p := rt.prefix(s, w); p != nil {
		out.hashes = p.hashes
	}
	cached := rt.cached(s, w) / max(w.blockTokens, 1)
	if cached == 0 {
		return out
	}
	of := ""
	for id, o := range w.own {
		if o.begun.IsZero() {
			continue
		}
		n := min(commonBlocks(out.hashes, o.hashes), cached)
		if n > out.shared || n > 0 && n == out.shared && id < of { // the same one each time
			out.with, out.shared, of = o, n, id
		}
	}
	return out
}

// passOn has those that share blocks with a request that has ended be charged with them: the one
// that shares the most, with which the others share theirs from now on.
func (w *worker) passOn(s *ownLoad) {
	if s.with != nil {
		s.with.sharers--
	}
	if s.sharers == 0 {
		return
	}
	var heir *ownLoad
	of := ""
	for id, o := range w.own {
		if o.with == s && (heir == nil || o.shared > heir.shared || o.shared == heir.shared && id < of) {
			heir, of = o, id
		}
	}
	for _, o := range w.own {
		if o.with != s {
			continue
		}
		if o.with = heir; o == heir {
			o.with = s.with
		}
		if o.with != nil {
			o.with.sharers++
		}
	}
	if more := heir.shared - s.shared; more > 0 {
		heir.shared -= more
		heir.blocks += more
		w.total.blocks += more
		if heir.unseen > 0 {
			w.unseenTotal.blocks += more
		}
	}
}

// commonBlocks is how many first blocks two prompts have in common. A block's hash is of all
// before it, too.
func commonBlocks(a, b []kvcache.Hash) (n int) {
	most := min(len(a), len(b))
	if most == 0 || a[0] != b[0] {
		return 0
	}
	n = 1
	for step := most - n; step > 0; step /= 2 {
		for n+step <= most && a[n+step-1] == b[n+step-1] {
			n += step
		}
	}
	return n
}
