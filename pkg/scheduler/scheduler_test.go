package scheduler_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// standard is a worker with blocks of 4 tokens and steps of 8 prompt tokens.
var standard = scheduler.Config{
	BlockTokens:    4,
	ContextTokens:  40,
	MaxBatchTokens: 16,
	MaxSequences:   4,
	ChunkTokens:    8,
	MaxWaiting:     4,
	MaxOvertakes:   3,
}

// prompt is n tokens that begin like any other prompt's.
func prompt(n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(i % 7)
	}
	return tokens
}

// never is a stop token that is not in the vocabulary.
var never = []int32{vocabulary}

// chunks runs a world until the sequence is over and collects what its prompt
// chunks were, by length.
func chunks(w *world, l *life) []int {
	var lengths []int
	for w.inFlight != nil {
		for i, part := range w.inFlight.Parts {
			if part.ID == l.request.ID && part.Prompt {
				lengths = append(lengths, len(w.inFlight.Batch.Sequences[i].Tokens))
			}
		}
		w.finishStep(time.Millisecond)
	}
	return lengths
}

func TestChunks(t *testing.T) {
	for _, test := range []struct {
		name      string
		tokens    int
		cached    int // tokens of the same prompt that ran before
		maxTokens int
		want      []int
	}{
		{"one token", 1, 0, 1, []int{1}},
		{"less than a block", 3, 0, 5, []int{3}},
		{"exactly one block", 4, 0, 5, []int{4}},
		{"one block and one token", 5, 0, 5, []int{5}},
		{"exactly two blocks", 8, 0, 5, []int{8}},
		{"one token over a chunk", 9, 0, 5, []int{8, 1}},
		{"exactly two chunks", 16, 0, 5, []int{8, 8}},
		{"a prefix is cached", 16, 8, 5, []int{8}},
		{"a prefix and a bit is cached", 16, 11, 5, []int{8}},
		{"all is cached", 16, 16, 5, []int{4}},
		{"all and more is cached", 14, 16, 5, []int{2}},
		{"one block is cached", 4, 4, 5, []int{4}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, 30, standard)
			if test.cached > 0 {
				w.submit(scheduler.Request{ID: 1, Tokens: prompt(test.cached), MaxTokens: 1})
				w.finishAll()
			}
			l := w.submit(scheduler.Request{ID: 2, Tokens: prompt(test.tokens), MaxTokens: test.maxTokens, Stop: never})
			if got := chunks(w, l); !slices.Equal(got, test.want) {
				t.Errorf("chunks of %v tokens, want %v", got, test.want)
			}
			if len(l.output) != test.maxTokens || l.finished.Reason != scheduler.Length {
				t.Errorf("%v, %+v", l.output, l.finished)
			}
			w.finishAll()
		})
	}
}

func TestEnds(t *testing.T) {
	_, first := alone(prompt(6), 1, 0, 10, nil)
	isFirst := []int32{first[0]}
	for _, test := range []struct {
		name    string
		request scheduler.Request
		tokens  int
		reason  scheduler.FinishReason
	}{
		{"max tokens 1", scheduler.Request{MaxTokens: 1, Stop: never}, 1, scheduler.Length},
		{"first token stops", scheduler.Request{MaxTokens: 9, Stop: isFirst}, 1, scheduler.Stopped},
		{"first token stops at max tokens", scheduler.Request{MaxTokens: 1, Stop: isFirst}, 1, scheduler.Stopped},
		{"max tokens", scheduler.Request{MaxTokens: 7, Stop: never}, 7, scheduler.Length},
		{"context full", scheduler.Request{MaxTokens: 1000, Stop: never}, 34, scheduler.Length},
		{"restarted", scheduler.Request{MaxTokens: 7, Generated: 3, Stop: never}, 4, scheduler.Length},
		{"restarted with one token left", scheduler.Request{MaxTokens: 4, Generated: 3, Stop: never}, 1, scheduler.Length},
	} {
		for kind, name := range map[scheduler.Kind]string{
			scheduler.Full: "full", scheduler.PrefillOnly: "prefill", scheduler.Receive: "receive",
		} {
			t.Run(test.name+"/"+name, func(t *testing.T) {
				w := newWorld(t, 30, standard)
				r := test.request
				r.ID, r.Kind, r.Tokens, r.Sampling.Seed = 1, kind, prompt(6), 1
				l := w.submit(r)
				if kind == scheduler.Receive {
					w.arrive(l, 1)
				}
				tokens, reason := test.tokens, test.reason
				if kind == scheduler.PrefillOnly && tokens > 1 {
					tokens, reason = 1, scheduler.PrefillDone
				}
				for w.inFlight != nil {
					w.finishStep(time.Millisecond)
				}
				if l.finished == nil || l.finished.Reason != reason || len(l.output) != tokens {
					t.Errorf("%v, %+v; want %d tokens and reason %d", l.output, l.finished, tokens, reason)
				}
				if kind == scheduler.PrefillOnly == l.released {
					t.Errorf("released: %v", l.released)
				}
				w.finishAll()
			})
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, test := range []struct {
		name    string
		request scheduler.Request
		want    scheduler.RefuseReason
	}{
		{"no tokens", scheduler.Request{MaxTokens: 1}, scheduler.Invalid},
		{"no kind", scheduler.Request{Kind: 3, Tokens: prompt(1), MaxTokens: 1}, scheduler.Invalid},
		{"nothing to generate", scheduler.Request{Tokens: prompt(1)}, scheduler.Invalid},
		{"all was generated before", scheduler.Request{Tokens: prompt(4), Generated: 2, MaxTokens: 2}, scheduler.Invalid},
		{"nothing was asked", scheduler.Request{Tokens: prompt(4), Generated: 4, MaxTokens: 9}, scheduler.Invalid},
		{"negative", scheduler.Request{Tokens: prompt(4), Generated: -1, MaxTokens: 9}, scheduler.Invalid},
		{"fills the context", scheduler.Request{Tokens: prompt(40), MaxTokens: 1}, scheduler.NeverFits},
		{"over the context", scheduler.Request{Kind: scheduler.PrefillOnly, Tokens: prompt(41), MaxTokens: 1}, scheduler.NeverFits},
		{"the largest", scheduler.Request{Tokens: prompt(20), MaxTokens: 5}, 0},
		{"more blocks than there are", scheduler.Request{Tokens: prompt(20), MaxTokens: 6}, scheduler.NeverFits},
		{"prefill only needs its prompt's", scheduler.Request{Kind: scheduler.PrefillOnly, Tokens: prompt(20), MaxTokens: 100}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, 6, standard)
			test.request.ID = 1
			if l := w.submit(test.request); l.reason != test.want {
				t.Errorf("refused with %d, want %d", l.reason, test.want)
			}
			w.finishAll()
		})
	}
}

func TestQueueFullAndDrain(t *testing.T) {
	w := newWorld(t, 30, standard)
	for id := range scheduler.SequenceID(11) {
		w.submit(scheduler.Request{ID: id + 1, Tokens: prompt(5), MaxTokens: 3})
	}
	// The first one runs, three have a place in the next step, and four wait.
	for i, l := range w.order {
		if want := i >= 8; l.refused != want || (want && l.reason != scheduler.QueueFull) {
			t.Errorf("%d: refused %v with %d", i, l.refused, l.reason)
		}
	}
	w.handle(scheduler.Drain{})
	if l := w.submit(scheduler.Request{ID: 12, Tokens: prompt(5), MaxTokens: 3}); l.reason != scheduler.Draining {
		t.Errorf("refused with %d", l.reason)
	}
	if !w.scheduler.Draining() || w.scheduler.Idle() {
		t.Error("does not drain, or is idle already")
	}
	w.finishAll()
	for _, l := range w.order[:5] {
		if l.finished.Reason == scheduler.Cancelled {
			t.Error("drain cancelled what ran")
		}
	}
	w.handle(scheduler.Undrain{})
	l := w.submit(scheduler.Request{ID: 10, Tokens: prompt(5), MaxTokens: 3})
	if w.finishAll(); l.refused || l.finished.Reason != scheduler.Length || w.scheduler.Draining() {
		t.Errorf("taken back: refused %v with %d, finished %v", l.refused, l.reason, l.finished)
	}
}

func TestKnownIDIsRefused(t *testing.T) {
	w := newWorld(t, 30, standard)
	w.submit(scheduler.Request{ID: 1, Tokens: prompt(5), MaxTokens: 3})
	actions := w.scheduler.Handle(w.now, scheduler.Submit{Request: scheduler.Request{ID: 1, Tokens: prompt(5), MaxTokens: 3}})
	if len(actions) != 1 || actions[0] != (scheduler.Refused{ID: 1, Reason: scheduler.Invalid}) {
		t.Errorf("%v", actions)
	}
	w.finishAll()
}

func TestPrefixIsShared(t *testing.T) {
	for _, test := range []struct {
		name  string
		first scheduler.Request
		tail  int // of the first one's output that the second prompt has
		want  int // tokens
	}{
		{"computed prompt", scheduler.Request{Tokens: prompt(12), MaxTokens: 1}, 0, 8},
		{"other salt", scheduler.Request{Tokens: prompt(12), MaxTokens: 1, Salt: "x"}, 0, 0},
		{"prefill", scheduler.Request{Kind: scheduler.PrefillOnly, Tokens: prompt(13), MaxTokens: 9}, 1, 12},
		{"received", scheduler.Request{Kind: scheduler.Receive, Tokens: prompt(13), MaxTokens: 1}, 1, 12},
		{"generated", scheduler.Request{Tokens: prompt(10), MaxTokens: 12, Stop: never}, 12, 20},
		{"received and generated", scheduler.Request{Kind: scheduler.Receive, Tokens: prompt(10), MaxTokens: 12, Stop: never}, 12, 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, 30, standard)
			test.first.ID = 1
			first := w.submit(test.first)
			w.finishAll()
			tokens := first.tokens()[:len(test.first.Tokens)+test.tail]
			if l := w.submit(scheduler.Request{ID: 2, Tokens: tokens, MaxTokens: 3}); l.cached != test.want {
				t.Errorf("%d tokens cached, want %d", l.cached, test.want)
			}
			w.finishAll()
			if l := w.submit(scheduler.Request{ID: 3, Kind: scheduler.Receive, Tokens: tokens, MaxTokens: 3}); l.cached != len(tokens)/4*4 && test.want > 0 {
				t.Errorf("%d of %d tokens need no transfer", l.cached, len(tokens))
			}
			w.finishAll()
		})
	}
}

func TestCancelledReservationIsQuarantined(t *testing.T) {
	for name, end := range map[string]func(*world, *life){
		"until the transfer is over":    func(w *world, l *life) { w.transferDone(l) },
		"until the late commit arrives": func(w *world, l *life) { w.arrive(l, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 6, standard)
			l := w.submit(scheduler.Request{ID: 1, Kind: scheduler.Receive, Tokens: prompt(16), MaxTokens: 5})
			if got := w.scheduler.Load(); got.BlocksReserved != 5 {
				t.Errorf("%+v", got)
			}
			w.handle(scheduler.Cancel{ID: 1})
			other := w.submit(scheduler.Request{ID: 2, Tokens: prompt(8), MaxTokens: 1, Salt: "x"})
			if got := w.scheduler.Load(); got.BlocksQuarantined != 5 || got.BlocksFree != 1 || got.WaitingSequences != 1 || other.started {
				t.Errorf("%+v", got)
			}
			end(w, l)
			if !l.released || !other.started {
				t.Error("the blocks did not come back")
			}
			w.finishAll()
		})
	}
}

// What a sequence was expected to grow by is there for others as soon as it is cancelled, also while a
// transfer still holds its blocks.
func TestCancelledReservationGrowsNoMore(t *testing.T) {
	w := newWorld(t, 10, standard)
	w.submit(scheduler.Request{ID: 1, Kind: scheduler.Receive, Tokens: prompt(8), MaxTokens: 30})
	other := w.submit(scheduler.Request{ID: 2, Kind: scheduler.Receive, Tokens: prompt(16), MaxTokens: 1, Salt: "x"})
	if other.reserved {
		t.Fatal("there is room for both: the test shows nothing")
	}
	w.handle(scheduler.Cancel{ID: 1})
	if !other.reserved {
		t.Error("it waits for blocks that nobody will need")
	}
	w.finishAll()
}

func TestFailedStepFailsItsSequencesOnly(t *testing.T) {
	w := newWorld(t, 30, standard)
	a := w.submit(scheduler.Request{ID: 1, Tokens: prompt(12), MaxTokens: 3})
	b := w.submit(scheduler.Request{ID: 2, Tokens: prompt(12), MaxTokens: 3, Salt: "b"})
	broken := errors.New("broken")
	w.failStep(broken)
	if a.finished == nil || a.finished.Reason != scheduler.Failed || !errors.Is(a.finished.Err, broken) || !a.released {
		t.Errorf("%+v", a.finished)
	}
	if len(w.cache) != 0 {
		t.Error("blocks of a failed step were published")
	}
	w.finishAll()
	if b.finished.Reason != scheduler.Length && b.finished.Reason != scheduler.Stopped {
		t.Errorf("%+v", b.finished)
	}
}

func TestBrokenAnswersFailTheStep(t *testing.T) {
	for name, done := range map[string]scheduler.StepDone{
		"too few tokens":     {},
		"no log probability": {Tokens: []int32{2}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 30, standard)
			l := w.submit(scheduler.Request{ID: 1, Tokens: prompt(3), MaxTokens: 3, Logprobs: true})
			w.inFlight = nil
			w.handle(done)
			if l.finished == nil || l.finished.Reason != scheduler.Failed || !l.released {
				t.Errorf("%+v", l.finished)
			}
		})
	}
	t.Run("KV without a token", func(t *testing.T) {
		w := newWorld(t, 30, standard)
		l := w.submit(scheduler.Request{ID: 1, Kind: scheduler.Receive, Tokens: prompt(3), MaxTokens: 3})
		w.arrive(l, 0)
		if l.finished == nil || l.finished.Reason != scheduler.Failed || !l.released {
			t.Errorf("%+v", l.finished)
		}
	})
}

func TestTimes(t *testing.T) {
	w := newWorld(t, 30, standard)
	w.submit(scheduler.Request{ID: 1, Tokens: prompt(8), MaxTokens: 3, Stop: never})
	second := w.submit(scheduler.Request{ID: 2, Tokens: prompt(12), MaxTokens: 3, Salt: "x", Stop: never})
	w.now = w.now.Add(time.Second)
	w.finishStep(100 * time.Millisecond)
	i := slices.IndexFunc(w.actions, func(a scheduler.Action) bool {
		s, ok := a.(scheduler.Started)
		return ok && s.ID == 2 && s.Waited == time.Second
	})
	if i < 0 {
		t.Errorf("%+v", w.actions)
	}
	for second.finished == nil {
		w.finishStep(100 * time.Millisecond)
	}
	if f := second.finished; f.PrefillCompute != 200*time.Millisecond || f.DecodeCompute != 200*time.Millisecond {
		t.Errorf("%+v", f)
	}
	w.finishAll()
}

func TestConfig(t *testing.T) {
	pool := kvcache.NewPool(4, 4, "model", "class")
	for name, change := range map[string]func(*scheduler.Config){
		"no pool":             func(c *scheduler.Config) { c.Pool = nil },
		"other block size":    func(c *scheduler.Config) { c.BlockTokens = 8 },
		"no context":          func(c *scheduler.Config) { c.ContextTokens = 1 },
		"batch below a block": func(c *scheduler.Config) { c.MaxBatchTokens = 3 },
		"no sequences":        func(c *scheduler.Config) { c.MaxSequences = 0 },
		"no chunk":            func(c *scheduler.Config) { c.ChunkTokens = 0 },
		"crooked chunk":       func(c *scheduler.Config) { c.ChunkTokens = 6 },
		"no queue":            func(c *scheduler.Config) { c.MaxWaiting = 0 },
		"negative overtakes":  func(c *scheduler.Config) { c.MaxOvertakes = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			c := standard
			c.Pool = pool
			if _, err := scheduler.New(c); err != nil {
				t.Fatal(err)
			}
			change(&c)
			if _, err := scheduler.New(c); err == nil {
				t.Error("no error")
			}
		})
	}
}
