package routing

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// Choosing a worker takes three steps. Filter says which workers may take the request, and
// why the others may not. Score predicts what it costs on each. Pick takes one at random of
// those near the best. All three run for the decode worker, then for the prefill worker.

// fitness is how well a worker, or the fittest of some, may take a request: best first.
type fitness int

const (
	fit          fitness = iota // nothing speaks against it
	unreporting                 // it reports no load, so it may hang
	failedBefore                // it failed this request, and another attempt may go well
	reportsFull                 // full by its load reports, not by the router's own account
	suspected                   // it hung, or failed what others serve
	held                        // soon: it would wait at the worker, and waits at the router instead
	later                       // not now, but soon
	unreachable                 // its KV does not get to the decode worker
	tooSmall                    // the request needs more blocks than it has
	excluded                    // for any other reason, or there is none
	tooSlow                     // it would miss the request's objective
)

func (f fitness) usable() bool { return f <= suspected }

// finding is what filter finds out about a worker.
type finding struct {
	worker  *worker
	fitness fitness
	reason  string // why it may not take the request; empty: it may
	probe   bool   // it reports to be full, and the request would find out whether it is
	// What a search asks of the worker's load, several times, is found out once: fresh says that its
	// last report is to be believed, others what other routers sent there that it does not count,
	// and prompts the share of its time that their prompts take.
	fresh          bool
	load           loadSum
	ofOtherRouters loadSum
	prompts        float64
}

// find finds out how busy a worker is.
func (rt *Router) find(now time.Time, w *worker) finding {
	f := finding{worker: w, fresh: w.fresh(now, rt.config.LoadStale)}
	f.ofOtherRouters, f.prompts = w.ofOtherRouters()
	f.load = w.estimateWith(f.fresh, &f.ofOtherRouters)
	return f
}

// candidate is a worker that filter and score looked at.
type candidate struct {
	finding
	cost

	reservedPlaces int // in the batch of a prefill worker, which aggregated requests leave free
}

// places are those of sequences that decode there.
func (c *candidate) places() int { return c.worker.maxSequences - c.reservedPlaces }

// candidates are the workers of one role that a search looked at.
type candidates struct {
	all     []candidate
	skipped int          // workers of the role that it did not look at
	away    int          // of those, how many get no requests of the model
	listed  []*candidate // by fittest
	fitness fitness      // of the fittest
	reason  string       // why none may take the request
	// path is the last of the broken ones, and broken why it is; empty: none is.
	path   path
	broken string
}

// between are those from one fitness to another, the fittest first.
func (c *candidates) between(from, to fitness) []*candidate {
	return c.appendBetween(make([]*candidate, 0, len(c.all)), from, to)
}

func (c *candidates) appendBetween(out []*candidate, from, to fitness) []*candidate {
	for f := from; f <= to; f++ {
		for i := range c.all {
			if c.all[i].fitness == f {
				out = append(out, &c.all[i])
			}
		}
	}
	return out
}

// fittest are those that pick chooses among, until it is called again.
func (c *candidates) fittest() []*candidate {
	c.listed = c.appendBetween(c.listed[:0], c.fitness, c.fitness)
	return c.listed
}

// usable is how many may take the request now, about, were all workers of the role looked at.
func (c *candidates) usable() (n int) {
	if !c.fitness.usable() {
		return 0
	}
	for i := range c.all {
		if c.all[i].fitness == c.fitness {
			n++
		}
	}
	return max(n, 1) * (len(c.all) + c.skipped - c.away) / max(len(c.all), 1)
}

// every lists all of them, as fittest does.
func (c *candidates) every() []*candidate {
	c.listed = c.listed[:0]
	for i := range c.all {
		c.listed = append(c.listed, &c.all[i])
	}
	return c.listed
}

// possible is how many of them may take the request, now or later, where the fittest worker of all is best:
// beside one that is well, a suspected one may not.
func (c *candidates) possible(best fitness) (n int) {
	for i := range c.all {
		if f := c.all[i].fitness; f <= later && (f != suspected || best == suspected) {
			n++
		}
	}
	return n
}

// candidateLists are used again by each search, as far as it needs.
type candidateLists struct {
	lists []*candidates
	used  int
}

func (l *candidateLists) next() *candidates {
	if l.used == len(l.lists) {
		l.lists = append(l.lists, new(candidates))
	}
	c := l.lists[l.used]
	l.used++
	*c = candidates{all: c.all[:0], listed: c.listed[:0], fitness: excluded}
	return c
}

// filter says which workers of a role may take a request. With a decode worker given,
// those that cannot send to it may not.
func (rt *Router) filter(s *search, role controlv1.Role, workers []*worker, to *worker) *candidates {
	model := rt.model(s.request.Model)
	out := rt.lists.next()
	out.all = slices.Grow(out.all, len(workers))
	var last, foreign *finding // of those that may not, to name one
	trusted := false           // one that nothing speaks against may take it later
	returns := false           // one without a connection is large enough
	for _, w := range workers {
		out.all = append(out.all, candidate{finding: rt.find(s.now, w)})
		c := &out.all[len(out.all)-1].finding
		c.fitness, c.reason = rt.check(s, role, model, c, to)
		if to != nil && c.fitness <= later {
			p := path{w.ref, to.ref}
			if why, soon := rt.blocked(s.now, s.request, p); why != "" {
				c.fitness, c.reason = unreachable, "KV cannot be sent from it to "+to.ref.ID+": "+why
				if soon {
					c.fitness = later
				}
				out.path, out.broken = p, why
			}
		}
		switch {
		case c.reason == "":
		case s.foreign(w):
			foreign = c
		default:
			last = c
			trusted = trusted || c.fitness == later && !w.avoided(s.now)
		}
		returns = returns || c.fitness == excluded && !w.connected && w.of(model) && !s.foreign(w)
		out.fitness = min(out.fitness, c.fitness)
	}
	if out.fitness == tooSmall && returns {
		out.fitness = excluded
	}
	switch last = cmp.Or(last, foreign); {
	case last != nil:
		out.reason = last.worker.ref.ID + ": " + last.reason
	case rt.unanswered[role] > 0:
		out.reason = fmt.Sprintf("%d registered, of which none has answered yet", rt.unanswered[role])
	default:
		out.reason = "none is registered"
		if id := rt.lastLeft(role, s.request.Model); id != "" {
			out.reason = id + ": it drained and left"
		}
	}
	if out.fitness == suspected && trusted {
		out.fitness = later
		for _, c := range out.between(suspected, suspected) {
			c.fitness, c.reason = later, c.worker.why
		}
	}
	return out
}

// check says how fit one worker is, whatever the path to the decode worker, and why it may not take the
// request.
func (rt *Router) check(s *search, role controlv1.Role, model Model, c *finding, to *worker) (f fitness, why string) {
	now, r, w := s.now, s.request, c.worker
	exclude := func(reason string) (fitness, string) {
		if !s.foreign(w) && neverFits(w, r, role) {
			return tooSmall, reason
		}
		return excluded, reason
	}
	if h := s.entry.hedges; h != nil && h.Late == w.ref {
		return exclude("the first attempt waits for it")
	}
	failed := false
	for _, f := range r.Failures {
		if f.Busy || f.Worker != w.ref && f.Unreached != w.ref {
			continue
		}
		if f.Gone && !f.answersAgain(w) {
			return exclude("it failed this request")
		}
		if f.Verdict {
			return exclude("it rejected this request, and another worker must confirm that")
		}
		failed = true
	}
	switch {
	case !w.of(model):
		return exclude("it serves another model: " + w.record.GetModel())
	case s.foreign(w):
		return exclude(rt.otherVersion(s, w))
	case w.draining:
		return exclude("it drains")
	case !w.connected:
		return exclude("no connection")
	case s.version == (Version{}):
		return exclude("it has not reported its weights")
	case to != nil && w.layoutDigest != to.layoutDigest:
		return exclude(fmt.Sprintf("its KV is %s, but that of %s is %s: give both the same flags", layoutText(w.record), to.ref.ID, layoutText(to.record)))
	case neverFits(w, r, role):
		return exclude(fmt.Sprintf("too small: %d blocks needed, but it has %d", need(w, r, role), w.blocks))
	case now.Before(w.busyUntil):
		return later, "it refused or failed a moment ago"
	}
	blocks, load := need(w, r, role), c.load
	full := w.full(load, blocks)
	if full && !w.crowded(load) && !w.full(load, blocks-rt.cached(s, w)/max(w.blockTokens, 1)) {
		blocks -= rt.share(s, w).shared
		full = w.full(load, blocks)
	}
	if full && (w.full(w.total, blocks) || !s.doubts(&rt.config) || w.probe.id != "") {
		return later, w.fullWhy(load, blocks)
	}
	load.add(&c.ofOtherRouters, -1)
	c.probe = w.full(load, blocks) // else other routers say so, not its reports
	switch {
	case w.avoided(now):
		return suspected, ""
	case full:
		return reportsFull, ""
	case failed:
		return failedBefore, ""
	case w.silent(now, rt.config.LoadStale, c.fresh):
		return unreporting, ""
	}
	return fit, ""
}

// layoutText names what workers' KV most often differs in, for people.
func layoutText(r *controlv1.WorkerRecord) string {
	l := r.GetLayout()
	return fmt.Sprintf("%s in blocks of %d tokens (layout %#x)", l.GetArithmeticClass(), l.GetBlockTokens(), r.GetLayoutDigest())
}

// positions is for how many tokens a worker of a role keeps KV: the last one that
// is generated is never computed with.
func positions(r *Request, role controlv1.Role) int {
	if role == controlv1.Role_ROLE_PREFILL {
		return r.Tokens
	}
	return r.Tokens + max(r.MaxNew-1, 0)
}

// need is how many blocks a request takes of a worker, with those that it shares with others.
func need(w *worker, r *Request, role controlv1.Role) int {
	return w.blocksFor(positions(r, role))
}

func neverFits(w *worker, r *Request, role controlv1.Role) bool {
	return w.blocks > 0 && need(w, r, role) > w.blocks
}
