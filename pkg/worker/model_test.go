package worker_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// chance draws what happens in a world.
type chance struct {
	*world
	rapid *rapid.T
}

// draw is a number below n. Rapid prefers small and extreme numbers, which would make of
// every history one of calamities: what it draws is mixed.
func draw(t *rapid.T, label string, n int) int {
	x := rapid.Uint64().Draw(t, label)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return int((x ^ x>>31) % uint64(n))
}

func (c *chance) draw(label string, n int) int { return draw(c.rapid, label, n) }

func (c *chance) rarely() bool { return c.draw("rarely", 30) == 0 }

// step draws one thing that happens.
func (c *chance) step() {
	switch op := c.draw("op", 100); {
	case op < 18:
		c.begin()
	case op < 50:
		c.endStep()
	case op < 83:
		if moves := c.moves(c.rarely()); len(moves) > 0 {
			moves[c.draw("move", len(moves))]()
		}
	case op < 88:
		c.task()
	case op < 91:
		if n := len(c.saves); n > 0 {
			how := c.draw("saved", 3)
			c.saveDone(c.draw("save", n), scheduler.SaveDone{Saved: how == 0, NotFinite: how == 1})
		}
	case op < 94:
		c.cancel()
	case op < 96:
		c.now = c.now.Add(time.Duration(c.draw("ms", 1000)) * time.Millisecond)
	case op < 98:
		c.unknown()
	case c.draw("all", 8) == 0:
		c.handle(worker.CancelAll{})
	case c.rarely() && !c.draining:
		c.draining = true
		c.handle(scheduler.Drain{})
	case c.draining:
		c.draining = false
		c.handle(scheduler.Undrain{})
	default:
		c.handle(scheduler.SaveLimit{Saves: c.draw("saves", 3)})
	}
}

// request draws one of a kind. Prompts are built of few different blocks, so that many share
// prefixes.
func (c *chance) request(kind scheduler.Kind) scheduler.Request {
	size := c.config.BlockTokens
	var tokens []int32
	for range c.draw("blocks", 4) {
		tokens = append(tokens, slices.Repeat([]int32{int32(c.draw("block", 2))}, size)...)
	}
	if kind == scheduler.Restore {
		tokens = append(tokens, slices.Repeat([]int32{1}, size)...)
	} else {
		tokens = append(tokens, slices.Repeat([]int32{2}, 1+c.draw("rest", size))...)
	}
	r := scheduler.Request{
		ID: c.lastID, Kind: kind, Tokens: tokens,
		Priority: int32(c.draw("priority", 2)), Logprobs: c.draw("logprobs", 4) == 0,
	}
	if kind != scheduler.Restore && c.draw("again", 4) == 0 {
		r.Generated = len(tokens) / 2
	}
	r.MaxTokens = r.Generated + 1 + c.draw("more tokens", 10)
	if c.draw("has stop", 3) == 0 {
		r.Stop = []int32{int32(c.draw("stop", vocabulary))}
	}
	return r
}

// begin begins a sequence.
func (c *chance) begin() {
	c.lastID++
	l := &sequence{id: c.lastID}
	var event worker.Event
	switch op := c.draw("begin", 10); {
	case op < 4:
		l.request = c.request([]scheduler.Kind{scheduler.Receive, scheduler.Receive, scheduler.Full}[c.draw("kind", 3)])
		l.generate = &worker.Generate{Request: l.request, Pauses: c.draw("pauses", 2) == 0}
		event = *l.generate
	case op < 8:
		l.request = c.request(scheduler.PrefillOnly)
		l.prefill = &worker.Prefill{Request: l.request, Held: c.draw("held", c.blocks(l)+1), Fetch: c.draw("fetch", 2) == 0}
		event = *l.prefill
	default:
		l.request = c.request(scheduler.Kind(c.draw("kind", 4)))
		event = scheduler.Submit{Request: l.request}
	}
	l.offset = l.request.Generated
	c.sequences[l.id] = l
	c.order = append(c.order, l)
	c.handle(event)
}

// endStep ends the step in flight, mostly well.
func (c *chance) endStep() {
	switch {
	case c.inFlight == nil:
	case c.rarely():
		c.stepFails()
	default:
		c.stepDone(func(int) int32 {
			if c.rarely() {
				return sampler.None
			}
			return int32(c.draw("token", vocabulary))
		})
	}
}

func (c *chance) task() {
	if len(c.backgroundTasks) == 0 {
		return
	}
	var found *worker.NotFiniteError
	if how := c.draw("found", 3); how > 0 {
		found = &worker.NotFiniteError{NotFiniteError: &engine.NotFiniteError{Layer: 0, Position: 0}, Origin: []string{"", "prefill"}[how-1]}
	}
	c.doBackgroundTask(found)
}

func (c *chance) cancel() {
	if len(c.order) == 0 {
		return
	}
	// Mostly a late one: the first are gone.
	n := min(len(c.order), 8)
	l := c.order[len(c.order)-1-c.draw("sequence", n)]
	if l.bare() {
		c.handle(scheduler.Cancel{ID: l.id})
		return
	}
	code := []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Internal}[c.draw("code", 3)]
	c.handle(worker.Cancel{ID: l.id, Err: status.Error(code, "cancelled")})
}

// unknown tells of sequences that there are not.
func (c *chance) unknown() {
	const id = 999_999
	for _, event := range []worker.Event{
		worker.Cancel{ID: id, Err: errBroken}, worker.Reserved{ID: id}, worker.NotReserved{ID: id}, worker.Arrived{ID: id},
		worker.Broke{ID: id}, worker.Drained{ID: id}, worker.Opened{ID: id}, worker.NotOpened{ID: id},
		worker.Fetched{ID: id}, worker.Sent{ID: id}, worker.Inspected{ID: id},
		scheduler.Cancel{ID: id}, scheduler.TransferDone{ID: id}, scheduler.KVArrived{ID: id}, scheduler.SaveDone{ID: id},
	} {
		c.handle(event)
	}
	if c.inFlight == nil {
		c.handle(scheduler.StepDone{})
	}
}

// Whatever happens, every sequence has one end, nothing comes after it, nobody writes into
// another's blocks, and once all has been answered nothing is left.
func TestWorkerAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := 1 + draw(t, "block tokens", 3)
		w := newWorld(t, []int{20, 12, 8, 5}[draw(t, "blocks", 4)], scheduler.Config{
			BlockTokens:    size,
			ContextTokens:  12 + draw(t, "context", 18),
			MaxBatchTokens: size + draw(t, "batch beyond a block", 12),
			MaxSequences:   1 + draw(t, "sequences", 5),
			ChunkTokens:    size * (1 + draw(t, "chunk blocks", 3)),
			MaxWaiting:     []int{8, 4, 2, 1}[draw(t, "waiting", 4)],
			MaxOvertakes:   1 + draw(t, "overtakes", 5),
			OutputShare:    []float64{0.01, 0, 0.3}[draw(t, "output share", 3)],
		})
		c := &chance{world: w, rapid: t}
		for range rapid.IntRange(20, 400).Draw(t, "steps") {
			c.step()
		}
		c.finish()
	})
}
