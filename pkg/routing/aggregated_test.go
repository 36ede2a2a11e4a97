package routing_test

import (
	"fmt"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// aggregatedPrefill is a prefill worker that takes aggregated requests, too.
func aggregatedPrefill(id string) *controlv1.WorkerRecord {
	r := prefill(id)
	r.WholeRequests = true
	r.Capacity.MaxSequences, r.Capacity.MaxWaiting = 16, 16
	return r
}

// Where many decode, a prefill worker that has time does all of a request, unless it cannot, or
// the mode or the policy forbids it.
func TestPrefillWorkersDoAllOfARequest(t *testing.T) {
	for _, c := range []struct {
		name   string
		mode   inferencev1.Mode
		policy string
		record *controlv1.WorkerRecord
		want   string // who decodes
	}{
		{"auto", auto, "slo", aggregatedPrefill("p"), "p"},
		{"aggregated", agg, "slo", aggregatedPrefill("p"), "p"},
		{"disaggregated", dis, "slo", aggregatedPrefill("p"), "d"},
		{"a policy that predicts nothing", agg, "round-robin", aggregatedPrefill("p"), "d"},
		{"a worker that does not say so", auto, "slo", prefill("p"), "d"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := decode("d")
			d.Capacity.MaxSequences, d.Capacity.MaxWaiting = 16, 16
			b := newBench(t, func(config *routing.Config) { config.Policy = c.policy }, c.record, d)
			b.do(load("p", controlv1.Role_ROLE_PREFILL, nil))
			b.do(load("d", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) {
				r.RunningSequences, r.RunningContextTokens = 14, 14*1000
				r.StepTime.PerContextTokenMs = 0.001
			}))
			got, refusal, answered := b.arrive(b.request(c.mode, 100))
			if !answered || got.Decode.ID != c.want {
				t.Errorf("%+v, %+v; want it decoded by %s", got, refusal, c.want)
			}
			if c.want == "p" && got.Prefill != (routing.Ref{}) {
				t.Errorf("another worker computes its prompt: %+v", got.Prefill)
			}
		})
	}
}

// What a prefill worker's steps of prompts make of a token of context says nothing of sequences that
// decode, of which it has had none: it is given some.
func TestPrefillWorkerThatHasDecodedNothing(t *testing.T) {
	d := decode("d")
	d.Capacity.MaxSequences, d.Capacity.MaxWaiting = 16, 16
	b := newBench(t, nil, aggregatedPrefill("p"), d)
	b.do(load("p", controlv1.Role_ROLE_PREFILL, func(r *controlv1.LoadReport) { r.StepTime.PerContextTokenMs = 1 }))
	b.do(load("d", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) {
		r.RunningSequences, r.RunningContextTokens = 14, 14*1000
		r.StepTime.PerContextTokenMs = 0.001
	}))
	if got, refusal, answered := b.arrive(b.request(auto, 100)); !answered || got.Decode.ID != "p" {
		t.Errorf("%+v, %+v", got, refusal)
	}
}

// Where no decode worker is left, prefill workers serve.
func TestPrefillWorkersServeAlone(t *testing.T) {
	b := newBench(t, nil, aggregatedPrefill("p"), decode("d"))
	b.do(routing.Disconnected{Worker: routing.Ref{ID: "d", Epoch: 1}})
	got, refusal, answered := b.arrive(b.request(auto, 100))
	if !answered || got.Decode.ID != "p" || got.Prefill != (routing.Ref{}) {
		t.Fatalf("%+v, %+v", got, refusal)
	}
	if why, want := got.Decision.GetReason(), "one worker does all, as there is no decode worker: d: no connection"; why != want {
		t.Errorf("%q, want %q", why, want)
	}
	for _, c := range got.Decision.GetCandidates() {
		if c.GetWorkerId() == "p" && c.GetExcluded() == "" {
			return
		}
	}
	t.Errorf("p is not shown: %v", got.Decision)
}

// Why one worker does all is said of the worker by which that was decided, not of the one that does it.
func TestWhyOneWorkerDoesAll(t *testing.T) {
	for _, c := range []struct {
		name, holder string // who has most of the prompt
		failures     []routing.Failure
		want         string
		fallback     bool
	}{
		{"the decode worker has most of the prompt", "d", nil, "32 uncached tokens on d are fewer than 64: a transfer costs more than it saves", false},
		{"KV did not arrive, and the prefill worker has most of the prompt", "p",
			[]routing.Failure{{Worker: routing.Ref{ID: "p0", Epoch: 1}, Unreached: routing.Ref{ID: "d0", Epoch: 1}, Why: "refused"}},
			"one worker does all because KV could not be sent from p0 to d0: refused", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := decode("d")
			d.Capacity.MaxSequences, d.Capacity.MaxWaiting = 16, 16
			b := newBench(t, nil, aggregatedPrefill("p"), d)
			b.do(load("p", controlv1.Role_ROLE_PREFILL, nil))
			b.do(load("d", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) {
				r.RunningSequences, r.RunningContextTokens = 14, 14*1000
				r.StepTime.PerContextTokenMs = 0.001
			}))
			b.do(routing.BlocksListed{Worker: routing.Ref{ID: c.holder, Epoch: 1}, Response: &workerv1.ListBlocksResponse{Epoch: 1, BlockHashes: []uint64{1, 2, 3}}})
			r := b.request(auto, 128)
			r.Failures = c.failures
			r.Hashes = hashed(b.f, func(routing.BlockKey) []kvcache.Hash { return []kvcache.Hash{1, 2, 3, 4} })
			got, refusal, _ := b.arrive(r)
			if got.Decode.ID != "p" || got.Decision.GetReason() != c.want || got.Fallback != c.fallback {
				t.Errorf("%+v, %+v, want %q", got, refusal, c.want)
			}
		})
	}
}

// Whole requests leave places in a prefill worker's batch for the prompts that come: once they have
// taken the others they go to a decode worker.
func TestPlacesForPromptsAreKept(t *testing.T) {
	for come, want := range map[int]string{0: "p", 40: "d"} {
		t.Run(fmt.Sprint(come, " prompts"), func(t *testing.T) {
			d := decode("d")
			d.Capacity.MaxSequences, d.Capacity.MaxWaiting = 64, 64
			b := newBench(t, nil, aggregatedPrefill("p"), d)
			report := func(decoding uint32) {
				b.do(load("d", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) {
					r.RunningSequences, r.RunningContextTokens = 20, 20*1000
					r.StepTime.PerContextTokenMs = 0.001
				}))
				b.do(load("p", controlv1.Role_ROLE_PREFILL, func(r *controlv1.LoadReport) {
					r.RunningSequences, r.DecodingSequences = decoding, decoding // of 16
				}))
			}
			for range come {
				report(0)
				r := b.request(dis, 100)
				if got, refusal, answered := b.arrive(r); !answered || got.Prefill.ID != "p" {
					t.Fatalf("%+v, %+v", got, refusal)
				}
				b.now = b.now.Add(50 * time.Millisecond)
				b.do(routing.PromptDone{ID: r.ID})
				b.do(routing.Ended{ID: r.ID})
			}
			report(14)
			if got, refusal, answered := b.arrive(b.request(auto, 100)); !answered || got.Decode.ID != want {
				t.Errorf("%+v, %+v; want it decoded by %s", got, refusal, want)
			}
		})
	}
}

// The longest context is known also where prefill workers serve alone.
func TestContextOfPrefillWorkersAlone(t *testing.T) {
	p, d := aggregatedPrefill("p"), decode("d")
	p.Capacity.ContextTokens, d.Capacity.ContextTokens = 1024, 1024
	b := newBench(t, nil, p, d)
	got, _, _ := b.arrive(b.request(auto, 100))
	b.do(routing.Ended{ID: got.ID})
	b.do(routing.Disconnected{Worker: routing.Ref{ID: "d", Epoch: 1}})
	alone, _, _ := b.arrive(b.request(auto, 100))
	if got.ContextTokens != 1024 || alone.ContextTokens != 1024 {
		t.Errorf("%d with a decode worker, %d without", got.ContextTokens, alone.ContextTokens)
	}
}

// With the last decode worker gone for a moment, a request waits that the prefill worker is too
// small for.
func TestTooSmallPrefillWorkerDoesNotRefuse(t *testing.T) {
	p := aggregatedPrefill("p")
	p.Capacity.Blocks = 8
	b := newBench(t, nil, p, decode("d"))
	b.do(routing.Disconnected{Worker: routing.Ref{ID: "d", Epoch: 1}})
	if d, refusal, answered := b.arrive(b.request(auto, 1000)); answered {
		t.Errorf("%+v, %+v", d, refusal)
	}
}

// Of many equal prefill workers each does all of a request about as often.
func TestSamplesOfPrefillWorkersAreFair(t *testing.T) {
	const n, rounds = 24, 1200
	var records []*controlv1.WorkerRecord
	for i := range n {
		records = append(records, aggregatedPrefill(fmt.Sprintf("p%02d", i)))
	}
	d := decode("d")
	d.Capacity.MaxSequences, d.Capacity.MaxWaiting = 16, 16
	b := newBench(t, nil, append(records, d)...)
	counts := map[string]int{}
	for range rounds {
		for _, r := range records {
			b.do(load(r.GetId(), controlv1.Role_ROLE_PREFILL, nil))
		}
		b.do(load("d", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) {
			r.RunningSequences, r.RunningContextTokens = 14, 14*1000
			r.StepTime.PerContextTokenMs = 0.001
		}))
		q := b.request(agg, 100)
		got, refusal, answered := b.arrive(q)
		if !answered {
			t.Fatalf("%+v", refusal)
		}
		counts[got.Decode.ID]++
		b.do(routing.Ended{ID: q.ID, Served: true})
		b.pass(100 * time.Millisecond)
	}
	for i := range n {
		if got := counts[fmt.Sprintf("p%02d", i)]; got < rounds/n/3 || got > 3*rounds/n {
			t.Errorf("worker %d did %d of %d", i, got, rounds)
		}
	}
}

// The best decode workers, more than bestAggregated looks at, cannot be reached; another one can, and is
// cheaper.
func TestPairChosenForItsPath(t *testing.T) {
	const n = 14
	fast := func(r *controlv1.LoadReport) { r.StepTime.BaseMs, r.StepTime.PerTokenMs = 0.1, 0.01 }
	records := []*controlv1.WorkerRecord{prefill("p"), decode("x")}
	for i := range n {
		records = append(records, decode(fmt.Sprintf("d%02d", i)))
	}
	b := newBench(t, nil, records...)
	report := func() {
		b.do(load("p", controlv1.Role_ROLE_PREFILL, fast))
		for i := range n {
			b.do(load(fmt.Sprintf("d%02d", i), controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) {
				r.StepTime.BaseMs, r.RunningSequences, r.RunningContextTokens = 20, 1, 100
			}))
		}
	}
	b.do(load("x", controlv1.Role_ROLE_DECODE, fast))
	report()
	for range 16 { // x is silent now
		b.pass(250 * time.Millisecond)
		report()
	}
	for range 2 {
		b.pass(150 * time.Millisecond)
		report()
		d, refusal, answered := b.arrive(b.request(agg, 1))
		if !answered {
			t.Fatalf("%+v", refusal)
		}
		e := routing.Ended{ID: d.ID}
		for i := range n {
			e.Failures = append(e.Failures, routing.Failure{Worker: routing.Ref{ID: "p", Epoch: 1}, Unreached: routing.Ref{ID: fmt.Sprintf("d%02d", i), Epoch: 1}, Why: nobodyThere})
		}
		b.do(e)
	}
	report()
	if d, refusal, answered := b.arrive(b.request(auto, 100)); !answered || d.Decode.ID == "" {
		t.Errorf("%+v, %+v, %v", d, refusal, answered)
	}
}

// A prefill worker that hung does nothing of a request while a decode worker is well, however much
// that one has to do.
func TestSuspectedPrefillWorkerIsLeftAlone(t *testing.T) {
	d := decode("d")
	d.Capacity.MaxSequences, d.Capacity.MaxWaiting = 16, 16
	b := newBench(t, nil, aggregatedPrefill("p"), d)
	report := func() {
		b.do(load("p", controlv1.Role_ROLE_PREFILL, nil))
		b.do(load("d", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) {
			r.RunningSequences, r.RunningContextTokens = 14, 14*1000
			r.StepTime.PerContextTokenMs = 0.001
		}))
	}
	report()
	before, refusal, answered := b.arrive(b.request(agg, 100))
	if !answered || before.Decode.ID != "p" {
		t.Fatalf("%+v, %+v", before, refusal)
	}
	b.do(routing.Ended{ID: before.ID, Failures: []routing.Failure{{Worker: before.Decode, Silent: true, Gone: true}}})
	for _, mode := range []inferencev1.Mode{agg, auto} {
		report()
		if got, refusal, answered := b.arrive(b.request(mode, 100)); !answered || got.Decode.ID != "d" {
			t.Errorf("%v: %+v, %+v", mode, got, refusal)
		}
	}
}

// Of many prefill workers the one that holds the prompt is looked at.
func TestPrefillWorkerThatHoldsThePromptIsSeen(t *testing.T) {
	const n, holder = 40, "p33"
	var records []*controlv1.WorkerRecord
	for i := range n {
		records = append(records, aggregatedPrefill(fmt.Sprintf("p%02d", i)))
	}
	b := newBench(t, nil, append(records, decode("d"))...)
	b.holds(holder, sequence(30)...)
	for range 20 {
		for _, r := range records {
			b.do(load(r.GetId(), controlv1.Role_ROLE_PREFILL, nil))
		}
		b.do(load("d", controlv1.Role_ROLE_DECODE, nil))
		r := b.request(agg, 1000)
		r.Hashes = numbered(b.f)
		if d, refusal, _ := b.arrive(r); d.Decode.ID != holder {
			t.Fatalf("went to %q instead of the one that holds the prompt: %+v", d.Decode.ID, refusal)
		}
		b.do(routing.Ended{ID: r.ID})
		b.pass(100 * time.Millisecond)
	}
}

// Of many prefill workers those are looked at that get requests.
func TestPrefillWorkersThatDrainAreNotLookedAt(t *testing.T) {
	const n, one = 40, 33
	for name, away := range map[string]func(routing.Ref) routing.Event{
		"they drain":    func(ref routing.Ref) routing.Event { return routing.Leaving{Worker: ref} },
		"they are gone": func(ref routing.Ref) routing.Event { return routing.Disconnected{Worker: ref} },
	} {
		t.Run(name, func(t *testing.T) {
			d := decode("d")
			d.Capacity.MaxSequences, d.Capacity.MaxWaiting = 16, 16
			records := []*controlv1.WorkerRecord{d}
			for i := range n {
				records = append(records, aggregatedPrefill(fmt.Sprintf("p%02d", i)))
			}
			b := newBench(t, nil, records...)
			for i := range n {
				if i != one {
					b.do(away(routing.Ref{ID: fmt.Sprintf("p%02d", i), Epoch: 1}))
				}
			}
			for range 20 {
				b.do(load("p33", controlv1.Role_ROLE_PREFILL, nil))
				b.do(load("d", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) {
					r.RunningSequences, r.RunningContextTokens = 14, 14*1000
					r.StepTime.PerContextTokenMs = 0.001
				}))
				r := b.request(agg, 100)
				if got, refusal, _ := b.arrive(r); got.Decode.ID != "p33" {
					t.Fatalf("went to %q: %+v", got.Decode.ID, refusal)
				}
				b.do(routing.Ended{ID: r.ID})
				b.pass(100 * time.Millisecond)
			}
		})
	}
}

// A refusal names whom the request could have gone to.
func TestRefusalsNameWhatIsLacking(t *testing.T) {
	gone := func(b *bench, ids ...string) {
		for _, id := range ids {
			b.do(routing.Disconnected{Worker: routing.Ref{ID: id, Epoch: 1}})
		}
	}
	small := aggregatedPrefill("p")
	small.Capacity.Blocks = 8
	for _, c := range []struct {
		name    string
		records []*controlv1.WorkerRecord
		mode    inferencev1.Mode
		tokens  int
		before  func(*bench)
		want    string
	}{
		{"nobody", []*controlv1.WorkerRecord{aggregatedPrefill("p"), decode("d")}, auto, 100, func(b *bench) { gone(b, "p", "d") },
			`no decode or prefill worker serves model "fable"; retry when one has registered (d: no connection; p: no connection)`},
		{"nobody for two workers", []*controlv1.WorkerRecord{aggregatedPrefill("p"), decode("d")}, dis, 100, func(b *bench) { gone(b, "d") },
			`no decode worker serves model "fable"; retry when one has registered (d: no connection)`},
		{"no prefill worker", []*controlv1.WorkerRecord{aggregatedPrefill("p"), decode("d")}, dis, 100, func(b *bench) { gone(b, "p") },
			`no prefill worker that can send to a decode worker serves model "fable"; retry when one has registered (p: no connection)`},
		{"prefill workers for prompts alone", []*controlv1.WorkerRecord{prefill("p"), decode("d")}, auto, 100, func(b *bench) { gone(b, "d") },
			`no decode worker serves model "fable"; retry when one has registered (d: no connection)`},
		{"drained", []*controlv1.WorkerRecord{aggregatedPrefill("p")}, auto, 100, func(b *bench) { b.do(routing.Leaving{Worker: routing.Ref{ID: "p", Epoch: 1}}) },
			`no decode or prefill worker serves model "fable"; take p back with 'tandem undrain p', or start another (none is registered; p: it drains)`},
		{"too large", []*controlv1.WorkerRecord{small, decode("d")}, auto, 5000, func(*bench) {},
			"prompt and completion need 5031 tokens of KV, but the largest decode or prefill worker holds 4096; ask for fewer tokens"},
		{"full", []*controlv1.WorkerRecord{aggregatedPrefill("p"), decode("d")}, auto, 100, func(b *bench) {
			for id, role := range map[string]controlv1.Role{"p": controlv1.Role_ROLE_PREFILL, "d": controlv1.Role_ROLE_DECODE} {
				b.do(routing.Arrived{Request: routing.Request{ID: id, Tenant: "t", Model: "fable", Mode: agg, Arrived: b.now, Tokens: 4000, MaxNew: 1}})
				b.do(load(id, role, func(r *controlv1.LoadReport) { r.BlocksFree = 0 }))
			}
		}, "no decode or prefill worker had capacity within 30s; retry later"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, func(config *routing.Config) { config.LoadStale = time.Hour }, c.records...)
			c.before(b)
			r := b.request(c.mode, c.tokens)
			_, refusal, answered := b.arrive(r)
			if !answered {
				_, refusal, _ = answerTo(r.ID, b.pass(time.Minute))
			}
			if refusal.Message != c.want {
				t.Errorf("%q, want %q", refusal.Message, c.want)
			}
		})
	}
}

// A decode worker whose first steps took long is tried again soon, also where no other is of its role,
// and later if it was slow for longer.
func TestABadBeginningIsForgotten(t *testing.T) {
	for _, c := range []struct {
		samples uint64
		idle    time.Duration
		want    string // who decodes
	}{{10, 100 * time.Millisecond, "p"}, {10, 300 * time.Millisecond, "d"}, {10_000, 9 * time.Second, "p"}, {10_000, 11 * time.Second, "d"}} {
		t.Run(fmt.Sprint(c.samples, " steps, idle for ", c.idle), func(t *testing.T) {
			p, d := aggregatedPrefill("p"), decode("d")
			b := newBench(t, nil, p, d)
			report := func(decoding uint32) {
				b.do(load("p", controlv1.Role_ROLE_PREFILL, func(r *controlv1.LoadReport) {
					r.RunningSequences, r.DecodingSequences = decoding, decoding
				}))
				b.do(load("d", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) {
					r.StepTime = &controlv1.StepTimeModel{BaseMs: 20, PerTokenMs: 0.1, Samples: c.samples}
				}))
			}
			for i := range 17 { // both have decoded
				report(0)
				mode, id := auto, "p"
				if i == 0 {
					mode, id = dis, "d"
				}
				r := b.request(mode, 10)
				if got, refusal, answered := b.arrive(r); !answered || got.Decode.ID != id {
					t.Fatalf("%+v, %+v", got, refusal)
				}
				b.do(routing.PromptDone{ID: r.ID})
				b.do(routing.Ended{ID: r.ID, Served: true, Tokens: 2, Decoding: time.Millisecond})
			}
			b.now = b.now.Add(c.idle)
			report(4)
			if got, refusal, answered := b.arrive(b.request(auto, 10)); !answered || got.Decode.ID != c.want {
				t.Errorf("%+v, %+v; want it decoded by %s", got, refusal, c.want)
			}
		})
	}
}

// While requests are refused for want of time, what a placement takes of the workers' time decides, but
// not against a prefill worker that has nothing to do.
func TestIdlePrefillWorkersAreUsedInOverload(t *testing.T) {
	for waiting, want := range map[uint64]string{0: "p", 3000: ""} {
		t.Run(fmt.Sprint(waiting, " tokens wait"), func(t *testing.T) {
			b := newBench(t, nil, prefill("p"), large("d"))
			report := func(p, d uint64) {
				b.do(load("p", controlv1.Role_ROLE_PREFILL, func(r *controlv1.LoadReport) {
					r.WaitingTokens, r.WaitingSequences = p, min(uint32(p), 1)
				}))
				b.do(load("d", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) {
					r.WaitingTokens, r.WaitingSequences = d, 1
				}))
			}
			report(3000, 3000)
			late := b.request(auto, 200)
			late.TTFT = 100 * time.Millisecond
			if _, refusal, _ := b.arrive(late); refusal.Reason != api.ReasonSLOUnattainable {
				t.Fatalf("%+v", refusal)
			}
			report(waiting, 300)
			r := b.request(auto, 200)
			r.TTFT = time.Second
			if got, refusal, answered := b.arrive(r); !answered || got.Prefill.ID != want {
				t.Errorf("%+v, %+v; want its prompt computed by %q", got, refusal, want)
			}
		})
	}
}
