package scheduler_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// TestTokensInTime: while prompts of any length come without end, who decodes has its tokens in the
// mean time that it wants, where steps without prompts are shorter, and prompts go on.
func TestTokensInTime(t *testing.T) {
	for seed := range uint64(16) {
		random := rand.New(rand.NewPCG(seed, 1))
		w := roomy(t, scheduler.Config{StepBudget: 100 * time.Millisecond})
		id := scheduler.SequenceID(0)
		submit := func(prompt, answer int, each time.Duration) *life {
			id++
			return w.submit(scheduler.Request{ID: id, Tokens: long(prompt, int(id)), MaxTokens: answer, Stop: never, EachIn: each})
		}
		step := func() {
			d := took(w.inFlight)
			w.now = w.now.Add(d)
			w.finishStep(d)
		}
		for i := range 12 { // until it is known what prompts and tokens take
			submit(1+40*i, 20, 0)
			step()
		}
		for w.inFlight != nil {
			step()
		}
		type paced struct {
			*life
			first, last time.Time
			tokens      int
		}
		// Seven that decode take 2 ms, and 7 times 100 µs and 2 µs a position.
		each := time.Duration(5+random.IntN(26)) * time.Millisecond
		var decode []*paced
		for range 7 {
			decode = append(decode, &paced{life: submit(10, 20+random.IntN(60), each)})
		}
		var prompts []*life
		for open := true; open; {
			for len(prompts) == 0 || prompts[len(prompts)-1].started {
				prompts = append(prompts, submit(1+random.IntN(600), 1, 0))
			}
			step()
			open = false
			for _, p := range decode {
				if n := len(p.output); n > p.tokens {
					if p.last = w.now; p.tokens == 0 {
						p.first = w.now
					}
					p.tokens = n
				}
				open = open || p.finished == nil
			}
		}
		for i, p := range decode {
			if mean := p.last.Sub(p.first) / time.Duration(p.tokens-1); mean > each {
				t.Errorf("seed %d, sequence %d: %d tokens in %v each, and %v were wanted", seed, i, p.tokens, mean, each)
			}
		}
		if len(prompts) < 3 {
			t.Errorf("seed %d: %d prompts came to be computed", seed, len(prompts))
		}
	}
}

// TestKVArrivesDuringPrompts: whose KV arrives in the middle of a step of prompts, where nobody else
// decodes, still has its tokens in time. Without a request whose KV is on its way, steps are longer.
func TestKVArrivesDuringPrompts(t *testing.T) {
	const each, answer = 8 * time.Millisecond, 24
	for seed := range uint64(12) {
		random := rand.New(rand.NewPCG(seed, 2))
		w := roomy(t, scheduler.Config{StepBudget: 100 * time.Millisecond})
		id := scheduler.SequenceID(0)
		submit := func(r scheduler.Request) *life {
			id++
			r.ID, r.Stop = id, never
			return w.submit(r)
		}
		prompt := func() { submit(scheduler.Request{Tokens: long(600, int(id)), MaxTokens: 1}) }
		step := func() time.Duration {
			d := took(w.inFlight)
			w.now = w.now.Add(d)
			w.finishStep(d)
			return d
		}
		for i := range 12 { // until it is known what prompts and tokens take
			submit(scheduler.Request{Tokens: long(1+40*i, int(id)), MaxTokens: 20})
			step()
		}
		for w.inFlight != nil {
			step()
		}
		prompt()
		whole := step()
		for w.inFlight != nil {
			step()
		}
		l := submit(scheduler.Request{Kind: scheduler.Receive, Tokens: long(400, int(id)), MaxTokens: answer, EachIn: each})
		for range 2 + random.IntN(8) {
			prompt()
			if d := step(); d >= whole {
				t.Errorf("seed %d: a step of %v while KV is on its way, as without", seed, d)
			}
		}
		prompt()
		d := took(w.inFlight)
		before := time.Duration(random.Int64N(int64(d)))
		w.now = w.now.Add(before)
		arrived := w.now
		w.arrive(l, 1)
		w.now = w.now.Add(d - before)
		w.finishStep(d)
		for l.finished == nil {
			prompt()
			step()
		}
		if mean := w.now.Sub(arrived) / (answer - 1); mean > each {
			t.Errorf("seed %d: %d tokens in %v each, and %v were wanted", seed, answer, mean, each)
		}
	}
}

// TestPromptsGoOnWhileKVIsOnItsWay: where nobody decodes, a step has a block of a prompt in any case,
// however little those have to spare whose KV is on its way: without a step nothing would go on.
func TestPromptsGoOnWhileKVIsOnItsWay(t *testing.T) {
	w := roomy(t, scheduler.Config{StepBudget: 100 * time.Millisecond})
	id := scheduler.SequenceID(0)
	submit := func(r scheduler.Request) *life {
		id++
		r.ID, r.Stop = id, never
		return w.submit(r)
	}
	step := func() {
		d := took(w.inFlight)
		w.now = w.now.Add(d)
		w.finishStep(d)
	}
	for i := range 12 { // until it is known what prompts and tokens take
		submit(scheduler.Request{Tokens: long(1+40*i, int(id)), MaxTokens: 20})
		step()
	}
	for w.inFlight != nil {
		step()
	}
	submit(scheduler.Request{Kind: scheduler.Receive, Tokens: long(400, int(id)), MaxTokens: 2, EachIn: 8 * time.Millisecond})
	l := submit(scheduler.Request{Tokens: long(600, int(id)), MaxTokens: 1})
	for w.inFlight != nil {
		step()
	}
	if l.finished == nil {
		t.Error("a prompt waits for KV that is on its way")
	}
}
