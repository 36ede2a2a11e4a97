package routing

import (
	"math/bits"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// A prompt that was sent to a worker will be in its prefix cache, and the next one that begins
// alike had better go there: it waits until the first is computed, as its queue says, and then
// has little left to do (pkg/scheduler sees to it that a worker does not compute the same blocks
// for two prompts at a time). So what was just sent is expected, until it has failed, the
// worker's own events say that it is there, or they should have.

const (
	// expectedBlocksMost bounds the blocks of the prompts that are expected, and expectedAlike
	// how many that begin with the same block.
	expectedBlocksMost = 1 << 18
	expectedAlike      = 64
	// confirmIn is how long after a prompt was computed events say so at the latest, where they
	// come, and expectedKept how long it is believed where they do not.
	confirmIn    = time.Second
	expectedKept = doubtHalf
	// repeatedWork is the share of its time that counts as a cost of computing a prompt elsewhere
	// that is computed anyway: what waits there for longer is others.
	repeatedWork = 0.25
)

// expectation is a prompt that a worker computes, or has computed.
type expectation struct {
	worker       *worker
	hashes       []kvcache.Hash // of all its blocks
	from         int            // of those, the first that the worker computes
	lacks        int            // tokens that it seemed to lack to the worker when it came
	ownObjective bool           // its request had one
	done         bool           // it is computed
	until        time.Time      // when it is believed no more; zero: it is not done
}

// expectations are all of them.
type expectations struct {
	byRequest map[string]*expectation         // those that are not done; the others are in worker.expected
	byBlock   map[kvcache.Hash][]*expectation // by their first blocks
	blocks    int
	turn      int // of the workers, by their order: of whom was seen last what is over
}

// expectedMatch is where a prompt meets an expectation: they have so many blocks in common, up to end.
type expectedMatch struct {
	*expectation
	end int
}

// expect notes that a worker is to compute a request's prompt.
func (rt *Router) expect(s *search, c *candidate) {
	p := rt.prefix(s, c.worker)
	x, size := &rt.expected, c.worker.blockTokens
	if p == nil || size <= 0 {
		return
	}
	e := &expectation{
		worker: c.worker, hashes: p.hashes, from: (c.cached + c.expected) / size,
		lacks: c.uncached, ownObjective: s.ownObjective(),
	}
	n := len(e.hashes) - e.from
	if n <= 0 {
		return
	}
	first := e.hashes[e.from]
	// What is over is looked for at one worker after the other, so that it takes no time.
	if x.turn++; x.turn >= len(rt.order) {
		x.turn = 0
	}
	rt.confirm(s.now, rt.order[x.turn])
	if x.blocks+n > expectedBlocksMost || len(x.byBlock[first]) >= expectedAlike {
		return
	}
	x.byBlock[first] = append(x.byBlock[first], e)
	x.byRequest[s.request.ID] = e
	x.blocks += n
}

// forget takes an expectation out.
func (x *expectations) forget(e *expectation) {
	first := e.hashes[e.from]
	alike := slices.DeleteFunc(x.byBlock[first], func(o *expectation) bool { return o == e })
	if len(alike) == 0 {
		delete(x.byBlock, first)
	} else {
		x.byBlock[first] = alike
	}
	x.blocks -= len(e.hashes) - e.from
}

// failed takes in that a request has ended: without its prompt computed, nothing is expected.
func (x *expectations) failed(id string) {
	if e := x.byRequest[id]; e != nil {
		delete(x.byRequest, id)
		x.forget(e)
	}
}

// computed takes in that a request's prompt is computed.
func (rt *Router) computed(now time.Time, id string) {
	x := &rt.expected
	e := x.byRequest[id]
	if e == nil {
		return
	}
	delete(x.byRequest, id)
	if rt.worker(e.worker.ref) != e.worker { // it was dropped, and its requests go on
		x.forget(e)
		return
	}
	e.done, e.until = true, now.Add(expectedKept)
	if now.Sub(e.worker.heardAt) <= rt.config.LoadStale {
		e.until = now.Add(confirmIn)
	}
	e.worker.expected = append(e.worker.expected, e)
	rt.confirm(now, e.worker)
}

// confirm forgets what was expected of a worker that has computed it, if the index has it or it is
// believed no more.
func (rt *Router) confirm(now time.Time, w *worker) {
	w.expected = slices.DeleteFunc(w.expected, func(e *expectation) bool {
		over := !now.Before(e.until) || rt.index.Holds(w.ref.ID, e.hashes[len(e.hashes)-1])
		if over {
			rt.expected.forget(e)
		}
		return over
	})
}

// forgetExpected forgets what was expected of a worker that is dropped.
func (rt *Router) forgetExpected(w *worker) {
	for _, e := range w.expected {
		rt.expected.forget(e)
	}
	w.expected = nil
}

// meet finds what is expected of a prompt's blocks, those that begin earlier first.
func (x *expectations) meet(out []expectedMatch, now time.Time, hashes []kvcache.Hash) []expectedMatch {
	if len(x.byBlock) == 0 {
		return out
	}
	for i, hash := range hashes {
		for _, e := range x.byBlock[hash] {
			if e.from != i || e.done && !now.Before(e.until) {
				continue
			}
			out = append(out, expectedMatch{e, commonBlocks(hashes, e.hashes)})
		}
	}
	return out
}

// expectedTokens is how many tokens of the prompt, beside those that w holds, others that go
// before it there have computed by its turn.
func (rt *Router) expectedTokens(s *search, w *worker, cached int) int {
	p := rt.prefix(s, w)
	if p == nil || len(p.expected) == 0 {
		return 0
	}
	asks, lacks := s.ownObjective(), bits.Len(uint(s.request.Tokens-cached))
	begin := cached / w.blockTokens
	end := begin
	for _, e := range p.expected {
		if e.worker == w && e.from <= end && e.end > end && e.before(asks, lacks) {
			end = e.end
		}
	}
	if end == begin {
		return 0
	}
	return min(end*w.blockTokens, max(s.request.Tokens-1, 0)) - cached
}

// before reports whether it is computed before a prompt that comes now with an objective or
// without, of which the worker lacks tokens whose number takes so many bits.
func (e *expectation) before(asks bool, lacks int) bool {
	switch {
	case e.done:
		return true
	case e.ownObjective != asks:
		return e.ownObjective
	}
	return asks || bits.Len(uint(e.lacks)) <= lacks
}

// ownObjective reports whether the request has an objective of its own: then workers compute its prompt
// before those of others, the earliest due first.
func (s *search) ownObjective() bool { return s.request.TTFT > 0 && !s.entry.defaultObjective }
