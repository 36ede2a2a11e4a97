package routing_test

import (
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// gapsOf is a number of equal gaps between tokens.
func gapsOf(n int, gap time.Duration) (g routing.Gaps) {
	for range n {
		g.Add(gap)
	}
	return g
}

// stepsOf is a report of a decode worker that has computed so many steps.
func stepsOf(id string, steps uint64, change func(*controlv1.LoadReport)) routing.LoadReported {
	return load(id, controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) {
		r.StepTime.Samples = steps
		if change != nil {
			change(r)
		}
	})
}

// take dispatches a request and returns what was said of it.
func (b *bench) take(t *testing.T, tokens int) routing.Dispatch {
	t.Helper()
	d, refusal, ok := b.arrive(b.request(agg, tokens))
	if !ok || refusal.Reason != "" {
		t.Fatalf("not dispatched: %v", refusal)
	}
	return d
}

// How long a worker may be silent follows from what is known of it, up to the flags.
func TestDerivedSilence(t *testing.T) {
	const flagQueue, flagPrompt, flagTokens = 30 * time.Second, time.Minute, 10 * time.Second
	slow := func(r *controlv1.LoadReport) { r.StepTime.BaseMs, r.StepTime.PerTokenMs = 10, 1 } // 138 ms for 128 tokens
	for _, test := range []struct {
		name    string
		workers []*controlv1.WorkerRecord
		report  func(*controlv1.LoadReport)
		gaps    routing.Gaps
		tokens  int
		want    routing.Silence // of the first worker
		holder  bool            // the first worker has the prompts
	}{
		{"nothing is known", []*controlv1.WorkerRecord{decode("d1"), decode("d2")}, func(r *controlv1.LoadReport) { r.StepTime = nil }, gapsOf(200, time.Millisecond), 10,
			routing.Silence{Queue: flagQueue, Prompt: flagPrompt, Tokens: flagTokens}, false},
		{"few gaps", []*controlv1.WorkerRecord{decode("d1"), decode("d2")}, nil, gapsOf(99, time.Millisecond), 10,
			routing.Silence{Queue: 5 * time.Second, Prompt: 5 * time.Second, Tokens: 5 * time.Second}, false},
		{"quick", []*controlv1.WorkerRecord{decode("d1"), decode("d2")}, nil, gapsOf(200, time.Millisecond), 10,
			routing.Silence{Queue: 5 * time.Second, Prompt: 5 * time.Second, Tokens: 2 * time.Second}, false},
		{"the only one", []*controlv1.WorkerRecord{decode("d1")}, nil, gapsOf(200, time.Millisecond), 10,
			routing.Silence{Queue: flagQueue, Prompt: flagPrompt, Tokens: flagTokens}, false},
		{"slow gaps", []*controlv1.WorkerRecord{decode("d1"), decode("d2")}, nil, gapsOf(200, 64*time.Millisecond), 10,
			routing.Silence{Queue: 5 * time.Second, Prompt: 5 * time.Second, Tokens: 3200 * time.Millisecond}, false},
		{"very slow gaps", []*controlv1.WorkerRecord{decode("d1"), decode("d2")}, nil, gapsOf(200, time.Second), 10,
			routing.Silence{Queue: 5 * time.Second, Prompt: 5 * time.Second, Tokens: flagTokens}, false},
		{"long chunks", []*controlv1.WorkerRecord{decode("d1"), decode("d2")}, slow, gapsOf(200, time.Millisecond), 1000,
			routing.Silence{Queue: flagQueue, Prompt: flagPrompt, Tokens: 2760 * time.Millisecond}, false},
		{"a queue", []*controlv1.WorkerRecord{decode("d1"), decode("d2")}, func(r *controlv1.LoadReport) { r.RunningSequences = 2 }, gapsOf(200, time.Millisecond), 10,
			routing.Silence{Queue: flagQueue, Prompt: 5 * time.Second, Tokens: 2 * time.Second}, false},
		{"a prefill worker that serves alone", []*controlv1.WorkerRecord{aggregatedPrefill("p1")}, nil, gapsOf(200, time.Millisecond), 10,
			routing.Silence{Queue: flagQueue, Prompt: flagPrompt, Tokens: flagTokens}, false},
		{"a prefill worker could serve", []*controlv1.WorkerRecord{decode("d1"), aggregatedPrefill("p1")}, nil, gapsOf(200, time.Millisecond), 10,
			routing.Silence{Queue: 5 * time.Second, Prompt: 5 * time.Second, Tokens: 2 * time.Second}, false},
		{"it has the prompt", []*controlv1.WorkerRecord{decode("d1"), decode("d2")}, nil, gapsOf(200, time.Millisecond), 10,
			routing.Silence{Queue: 5 * time.Second, Prompt: 5 * time.Second, Tokens: 2 * time.Second}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, nil, test.workers...)
			report := func(steps uint64) {
				for _, w := range test.workers {
					b.do(stepsOf(w.GetId(), steps, test.report))
				}
			}
			first := routing.Ref{ID: test.workers[0].GetId(), Epoch: 1}
			take := func() routing.Dispatch {
				r := b.request(agg, test.tokens)
				if test.holder {
					r.Holder = first
				}
				d, refusal, ok := b.arrive(r)
				if !ok || refusal.Reason != "" {
					t.Fatalf("not dispatched: %v", refusal)
				}
				return d
			}
			report(100)
			for range 20 { // each has had some
				d := take()
				b.do(routing.PromptDone{ID: d.ID})
				b.do(routing.Ended{ID: d.ID, Served: true})
			}
			for known := false; !known; {
				d := take()
				if known = d.Decode == first; known {
					b.do(routing.TokensReceived{ID: d.ID, Gaps: test.gaps})
				}
				b.do(routing.Ended{ID: d.ID, Served: true})
			}
			b.pass(time.Second) // reports go on
			report(101)
			for {
				d := take()
				b.do(routing.Ended{ID: d.ID})
				if d.Decode == first {
					if got := d.DecodeSilence; (got.Tokens-test.want.Tokens).Abs() > time.Millisecond || got.Queue != test.want.Queue || got.Prompt != test.want.Prompt {
						t.Errorf("%+v, want %+v", got, test.want)
					}
					return
				}
			}
		})
	}
}

// hang lets a request be given up for the silence of d1, which others share.
func (b *bench) hang(t *testing.T) {
	t.Helper()
	for {
		d := b.take(t, 10)
		e := routing.Ended{ID: d.ID}
		if d.Decode.ID == "d1" {
			e.Failures = []routing.Failure{{Worker: d.Decode, Silent: true, Gone: true}}
		}
		b.do(e)
		if d.Decode.ID == "d1" {
			return
		}
	}
}

// used is how many of n requests, each ended at once, went to d1.
func (b *bench) used(t *testing.T, n int) (used int) {
	t.Helper()
	for range n {
		d := b.take(t, 10)
		if d.Decode.ID == "d1" {
			used++
		}
		b.do(routing.Ended{ID: d.ID}) // its client left: it says nothing of the worker
	}
	return used
}

// A worker that was silent is left alone until it has computed a step, or for 30 s,
// and then one request tries it at a time.
func TestSuspectedUntilItComputes(t *testing.T) {
	b := newBench(t, nil, decode("d1"), decode("d2"))
	reports := func(steps uint64) {
		b.do(stepsOf("d1", steps, nil))
		b.do(stepsOf("d2", steps, nil))
	}
	wait := func(seconds int, steps uint64) {
		for range seconds {
			b.pass(time.Second)
			reports(steps)
		}
	}
	reports(100)
	b.hang(t)
	for range 29 {
		wait(1, 100)
		if v := b.f.Workers(b.now)[0]; v.GetRecord().GetId() != "d1" || v.GetExcluded() == "" {
			t.Fatalf("operators see %+v", v)
		}
		if used := b.used(t, 10); used > 0 {
			t.Fatalf("%d requests went to it", used)
		}
	}
	wait(2, 100)
	if used := b.used(t, 20); used != 1 {
		t.Errorf("%d requests tried it", used)
	}
	wait(20, 100)
	if used := b.used(t, 20); used != 0 {
		t.Errorf("%d requests went to it after the trial", used)
	}
	wait(1, 101)
	if used := b.used(t, 40); used == 0 || b.f.Workers(b.now)[0].GetExcluded() != "" {
		t.Error("it computes again and is not used")
	}
	// It lied so often that only a request's own progress counts.
	b.hang(t)
	wait(1, 102)
	b.hang(t)
	wait(1, 103)
	if used := b.used(t, 20); used != 0 {
		t.Errorf("%d requests went to one whose reports are not believed any more", used)
	}
	wait(31, 104)
	for {
		d := b.take(t, 10)
		if d.Decode.ID == "d1" {
			b.do(routing.PromptDone{ID: d.ID})
			b.do(routing.Ended{ID: d.ID, Served: true})
			break
		}
		b.do(routing.Ended{ID: d.ID, Served: true})
	}
	if used := b.used(t, 40); used == 0 {
		t.Error("it has served a request and is not used")
	}
}

// A process that was stopped, reports and all, is used when it goes on, though it has
// nothing to compute then.
func TestSuspectedUntilItReportsAgain(t *testing.T) {
	b := newBench(t, nil, decode("d1"), decode("d2"))
	b.do(stepsOf("d1", 100, nil))
	b.do(stepsOf("d2", 100, nil))
	b.hang(t)
	for range 8 {
		b.pass(time.Second)
		b.do(stepsOf("d2", 100, nil))
	}
	if used := b.used(t, 20); used != 0 {
		t.Errorf("%d requests went to one that is stopped", used)
	}
	b.do(stepsOf("d1", 100, nil))
	if used := b.used(t, 40); used == 0 {
		t.Error("it goes on and is not used")
	}
}

// A worker that was only slow is given longer afterwards.
func TestFalseSuspicionGivesPatience(t *testing.T) {
	b := newBench(t, nil, decode("d1"), decode("d2"))
	limit := func() time.Duration {
		for {
			d := b.take(t, 10)
			b.do(routing.TokensReceived{ID: d.ID, Gaps: gapsOf(100, time.Millisecond)})
			b.do(routing.Ended{ID: d.ID})
			if d.Decode.ID == "d1" {
				return d.DecodeSilence.Tokens
			}
		}
	}
	steps := uint64(100)
	report := func() {
		steps++
		b.do(stepsOf("d1", steps, nil))
		b.do(stepsOf("d2", steps, nil))
	}
	report()
	limit()
	for _, want := range []time.Duration{2 * time.Second, 4 * time.Second, 8 * time.Second, 10 * time.Second} {
		if got := limit(); got != want {
			t.Errorf("it may be silent for %v, want %v", got, want)
		}
		b.hang(t)
		b.pass(time.Second)
		report()
	}
}

// A suspected worker is used where there is no other, and not where another is only
// full at the moment.
func TestSuspectedAndOthers(t *testing.T) {
	b := newBench(t, nil, decode("d1"))
	b.do(stepsOf("d1", 100, nil))
	b.hang(t)
	b.pass(time.Second)
	if used := b.used(t, 3); used != 3 {
		t.Errorf("%d of 3 requests went to the only worker", used)
	}
	b = newBench(t, nil, decode("d1"), decode("d2"))
	for _, id := range []string{"d1", "d2"} {
		b.do(stepsOf(id, 100, nil))
	}
	b.hang(t)
	b.pass(time.Second)
	full := func(r *controlv1.LoadReport) { r.BlocksFree = 0 }
	b.do(stepsOf("d1", 100, nil))
	b.do(stepsOf("d2", 100, full))
	r := b.request(agg, 10)
	if d, refusal, answered := b.arrive(r); answered {
		t.Errorf("it does not wait for the one that is full: %v %v", d.Decode, refusal)
	}
	if d, _, _ := answerTo(r.ID, b.do(stepsOf("d1", 101, nil))); d.Decode.ID != "d1" {
		t.Errorf("it does not go to the one that computes again: %v", d.Decode)
	}
}

// A worker that fails what others serve, again and again, is left alone for longer
// and longer; what failed together counts once, and one success ends it.
func TestContradictedWorker(t *testing.T) {
	b := newBench(t, nil, decode("d1"), decode("d2"))
	ref := routing.Ref{ID: "d1", Epoch: 1}
	suspected := func(began time.Time) (wait time.Duration) {
		for _, action := range b.do(routing.Contradicted{Worker: ref, Began: began, Why: "is wrong"}) {
			if s, is := action.(routing.Suspected); is {
				wait = s.Wait
			}
		}
		return wait
	}
	for i, want := range []time.Duration{0, 0, time.Second, 2 * time.Second, 4 * time.Second} {
		began := b.now
		b.pass(time.Millisecond)
		if got := suspected(began); got != want {
			t.Errorf("contradiction %d: left alone for %v, want %v", i, got, want)
		}
		if got := suspected(began); got != 0 {
			t.Errorf("one that set out with the %dth counts, too: %v", i, got)
		}
		b.pass(time.Millisecond)
	}
	if used := b.used(t, 20); used != 0 {
		t.Errorf("%d requests went to it", used)
	}
	b.pass(4 * time.Second)
	if used := b.used(t, 20); used != 1 {
		t.Errorf("%d requests tried it", used)
	}
	b.pass(4 * time.Second)
	for {
		d := b.take(t, 10)
		b.do(routing.Ended{ID: d.ID, Served: true})
		if d.Decode == ref {
			break
		}
	}
	if used := b.used(t, 40); used == 0 {
		t.Error("it has served one and is not used")
	}
	b.pass(time.Millisecond)
	if got := suspected(b.now); got != 0 {
		t.Errorf("after a success it is left alone for %v", got)
	}
	b.do(routing.Contradicted{Worker: routing.Ref{ID: "d1", Epoch: 9}}) // of another incarnation
	// What a broken connection made fail does not count.
	for range 5 {
		began := b.now
		b.pass(time.Millisecond)
		b.do(routing.Disconnected{Worker: ref})
		if got := suspected(began); got != 0 {
			t.Errorf("while its connection is broken it is left alone for %v", got)
		}
		b.do(routing.Connected{Worker: ref})
		if got := suspected(began); got != 0 {
			t.Errorf("after its connection broke it is left alone for %v", got)
		}
	}
}
