package scheduler_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// paced is a world whose scheduler knows what prompts and tokens take.
type paced struct {
	*world
	last scheduler.SequenceID
}

func newPaced(t *testing.T) *paced {
	w := &paced{world: roomy(t, scheduler.Config{StepBudget: 100 * time.Millisecond})}
	for i := range 12 {
		w.ask(scheduler.Request{MaxTokens: 20}, 1+40*i)
		w.step()
	}
	for w.inFlight != nil {
		w.step()
	}
	return w
}

// ask submits a request with a prompt of so many tokens that no other begins like.
func (w *paced) ask(r scheduler.Request, tokens int) *life {
	w.last++
	r.ID, r.Stop, r.Tokens = w.last, never, long(tokens, int(w.last))
	return w.submit(r)
}

// step ends the step in flight when it is due, and returns how long it took.
func (w *paced) step() time.Duration {
	d := took(w.inFlight)
	w.now = w.now.Add(d)
	w.finishStep(d)
	return d
}

// TestTokensInTime: while prompts of any length come without end, who decodes has its tokens in the
// mean time that it wants, where steps without prompts are shorter, and prompts go on.
func TestTokensInTime(t *testing.T) {
	for seed := range uint64(16) {
		random := rand.New(rand.NewPCG(seed, 1))
		w := newPaced(t)
		type decoding struct {
			*life
			first, last time.Time
			tokens      int
		}
		// Seven that decode take 2 ms, and 7 times 100 µs and 2 µs a position.
		each := time.Duration(5+random.IntN(26)) * time.Millisecond
		var decode []*decoding
		for range 7 {
			decode = append(decode, &decoding{life: w.ask(scheduler.Request{MaxTokens: 20 + random.IntN(60), EachIn: each}, 10)})
		}
		var prompts []*life
		for open := true; open; {
			for len(prompts) == 0 || prompts[len(prompts)-1].started {
				prompts = append(prompts, w.ask(scheduler.Request{MaxTokens: 1}, 1+random.IntN(600)))
			}
			w.step()
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
		w := newPaced(t)
		prompt := func() { w.ask(scheduler.Request{MaxTokens: 1}, 600) }
		prompt()
		whole := w.step()
		for w.inFlight != nil {
			w.step()
		}
		l := w.ask(scheduler.Request{Kind: scheduler.Receive, MaxTokens: answer, EachIn: each}, 400)
		for range 2 + random.IntN(8) {
			prompt()
			if d := w.step(); d >= whole {
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
			w.step()
		}
		if mean := w.now.Sub(arrived) / (answer - 1); mean > each {
			t.Errorf("seed %d: %d tokens in %v each, and %v were wanted", seed, answer, mean, each)
		}
	}
}

// TestPromptsGoOnWhileKVIsOnItsWay: where nobody decodes, a step has a block of a prompt in any case,
// however little those have to spare whose KV is on its way: without a step nothing would go on.
func TestPromptsGoOnWhileKVIsOnItsWay(t *testing.T) {
	w := newPaced(t)
	w.ask(scheduler.Request{Kind: scheduler.Receive, MaxTokens: 2, EachIn: 8 * time.Millisecond}, 400)
	l := w.ask(scheduler.Request{MaxTokens: 1}, 600)
	for w.inFlight != nil {
		w.step()
	}
	if l.finished == nil {
		t.Error("a prompt waits for KV that is on its way")
	}
}

// TestBlocksThatTakeLong: where a block late in a prompt takes longer than what each step has to
// spare, some steps have none, and one who decodes has its tokens in time.
func TestBlocksThatTakeLong(t *testing.T) {
	const each, answer = 5 * time.Millisecond, 150
	w := newPaced(t)
	l := w.ask(scheduler.Request{MaxTokens: answer, EachIn: each}, 10)
	w.step()
	began := w.now
	prompt := w.ask(scheduler.Request{MaxTokens: 1}, 1900) // a block of its last takes 15 ms
	for l.finished == nil {
		w.step()
	}
	if prompt.finished != nil {
		t.Error("the long prompt has ended before")
	}
	if mean := w.now.Sub(began) / (answer - 1); mean > each {
		t.Errorf("%d tokens in %v each, and %v were wanted", answer, mean, each)
	}
}
