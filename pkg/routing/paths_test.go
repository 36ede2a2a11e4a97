package routing_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
)

const nobodyThere = "127.0.0.1:9: connection refused"

// unreached ends a request whose prefill worker found no way to its decode worker,
// and returns what it says to its next try.
func (b *bench) unreached(d routing.Dispatch) []routing.Failure {
	failures := []routing.Failure{{Worker: d.Prefill, Unreached: d.Decode, Why: nobodyThere}}
	b.do(routing.Ended{ID: d.ID, Failures: failures})
	return failures
}

// aloneFor is for how long the only pair is left alone, once its last try has failed.
func (b *bench) aloneFor() time.Duration {
	for waited := time.Duration(0); ; waited += 50 * time.Millisecond {
		d, _, _ := b.arrive(b.request(auto, 100))
		if d.Prefill.ID != "" {
			b.unreached(d)
			return waited
		}
		b.do(routing.Ended{ID: d.ID})
		b.pass(50 * time.Millisecond)
	}
}

func TestBrokenPathIsLeftAlone(t *testing.T) {
	b := newBench(t, nil, prefill("p1"), decode("d1"))
	d, _, _ := b.arrive(b.request(auto, 100))
	if d.Prefill.ID != "p1" {
		t.Fatalf("%v", d)
	}
	if b.unreached(d); len(b.last) != 0 {
		t.Errorf("said %+v of what may be chance", b.last)
	}
	// Others run on one worker meanwhile and say why; each failure doubles the time.
	d, _, _ = b.arrive(b.request(auto, 100))
	reason := d.Decision.GetReason()
	if d.Decode.ID != "d1" || d.Decision.GetMode() != agg || !d.Fallback || !strings.Contains(reason, "p1 to d1") || !strings.Contains(reason, nobodyThere) {
		t.Errorf("%v", d)
	}
	if c := d.Decision.GetCandidates(); len(c) != 2 || !strings.Contains(c[1].GetExcluded(), "KV cannot be sent from it to d1") {
		t.Errorf("candidates %v", c)
	}
	b.do(routing.Ended{ID: d.ID})
	if got := b.aloneFor(); got != 100*time.Millisecond {
		t.Errorf("left alone for %v at first", got)
	}
	if lost, is := b.last[0].(routing.PathLost); !is || lost.Prefill.ID != "p1" || lost.Decode.ID != "d1" || lost.Why != nobodyThere || lost.Wait != time.Second {
		t.Errorf("said %+v", b.last)
	}
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		if got := b.aloneFor(); got != want*time.Second {
			t.Errorf("left alone for %v, want %v s", got, want)
		}
	}
	if n := b.f.BrokenPaths(); n != 1 {
		t.Errorf("%d broken paths", n)
	}
	// A transfer that begins ends that.
	b.pass(30 * time.Second)
	d, _, _ = b.arrive(b.request(auto, 100))
	b.do(routing.PromptDone{ID: d.ID})
	if next, _, _ := b.arrive(b.request(auto, 100)); d.Prefill.ID != "p1" || next.Prefill.ID != "p1" || b.f.BrokenPaths() != 0 {
		t.Errorf("still left alone: %v, %d broken paths", next, b.f.BrokenPaths())
	}
}

// While one request tries the path again, the others go without it, and what fails
// together is one failure.
func TestOneRequestTriesThePath(t *testing.T) {
	b := newBench(t, nil, prefill("p1"), decode("d1"))
	first, _, _ := b.arrive(b.request(auto, 100))
	second, _, _ := b.arrive(b.request(auto, 100))
	b.unreached(first)
	if b.unreached(second); len(b.last) != 0 {
		t.Errorf("two that set out together count twice: %v", b.last)
	}
	b.pass(100 * time.Millisecond)
	probe, _, _ := b.arrive(b.request(auto, 100))
	other, _, _ := b.arrive(b.request(auto, 100))
	if probe.Prefill.ID != "p1" || other.Prefill.ID != "" {
		t.Errorf("probe %v, other %v", probe, other)
	}
	b.unreached(probe)
	if lost, is := b.last[0].(routing.PathLost); !is || lost.Wait != time.Second {
		t.Errorf("the probe that failed gives %+v", b.last)
	}
}

// The first failure may be chance: a request without another pair waits and tries again.
func TestFirstFailureOfAPath(t *testing.T) {
	b := newBench(t, nil, prefill("p1"), decode("d1"))
	r, other := b.request(dis, 100), b.request(dis, 100)
	d, _, _ := b.arrive(r)
	r.Failures, r.Attempt = b.unreached(d), 1
	for _, r := range []routing.Request{r, other} {
		if d, refusal, answered := b.arrive(r); answered {
			t.Fatalf("%v, %+v", d, refusal)
		}
	}
	actions := b.pass(100 * time.Millisecond)
	d, _, _ = answerTo(r.ID, actions)
	if _, _, answered := answerTo(other.ID, actions); d.Prefill.ID != "p1" || answered {
		t.Errorf("%v", actions)
	}
	if d, _, _ := answerTo(other.ID, b.do(routing.PromptDone{ID: r.ID})); d.Prefill.ID != "p1" {
		t.Errorf("%v", b.last)
	}
}

// Another pair is better than one worker.
func TestAnotherPair(t *testing.T) {
	for _, mode := range []inferencev1.Mode{auto, dis} {
		b := newBench(t, nil, prefill("p1"), decode("d1"), decode("d2"))
		d, _, _ := b.arrive(b.request(mode, 100))
		b.unreached(d)
		for range 2 {
			again, _, _ := b.arrive(b.request(mode, 100))
			b.do(routing.Ended{ID: again.ID})
			if again.Prefill.ID != "p1" || again.Decode == d.Decode || again.Fallback {
				t.Errorf("%v: after %v goes to %v", mode, d.Decode, again)
			}
		}
	}
}

// The request that found the path broken is not put at that risk again in mode
// auto; if it is to be disaggregated, each pair is tried twice.
func TestNextTryOfUnreached(t *testing.T) {
	b := newBench(t, nil, prefill("p1"), prefill("p2"), decode("d1"))
	r := b.request(auto, 100)
	d, _, _ := b.arrive(r)
	r.Failures = b.unreached(d)
	r.Attempt = 1
	b.pass(10 * time.Second) // the path is open again: to others
	d, _, _ = b.arrive(r)
	if reason := d.Decision.GetReason(); d.Prefill.ID != "" || !d.Fallback || !strings.Contains(reason, nobodyThere) {
		t.Errorf("%v", d)
	}
	b.do(routing.Ended{ID: d.ID})

	r = b.request(dis, 100)
	tried := map[string]int{}
	for r.Attempt = range 5 {
		d, refusal, answered := b.arrive(r)
		if r.Attempt == 4 {
			names := strings.Contains(refusal.Message, "p1 to d1") || strings.Contains(refusal.Message, "p2 to d1")
			if !answered || refusal.Code != codes.Unavailable || refusal.Reason != api.ReasonKVUnreachable || !names ||
				!strings.Contains(refusal.Message, "--kv-advertise") || !strings.Contains(refusal.Message, "--kv-max-connections") || !strings.Contains(refusal.Message, nobodyThere) || refusal.RetryAfter < time.Second {
				t.Errorf("answered %v: %+v, %v", answered, refusal, d)
			}
			break
		}
		if tried[d.Prefill.ID]++; tried[d.Prefill.ID] > 2 {
			t.Errorf("%s is tried again and again", d.Prefill.ID)
		}
		r.Failures = append(r.Failures, b.unreached(d)...)
		b.pass(10 * time.Second)
	}
	// Another request may try again by now; at once it could not have.
	if d, _, _ := b.arrive(b.request(dis, 100)); d.Prefill.ID == "" {
		t.Errorf("%v", d)
	}
}

// With every pair broken the answer to one that is to be disaggregated comes at once;
// a decode worker that has no room at the moment may still be the way out.
func TestEveryPathBroken(t *testing.T) {
	b := newBench(t, nil, prefill("p1"), decode("d1"))
	for range 2 {
		d, _, _ := b.arrive(b.request(dis, 100))
		b.unreached(d)
		b.pass(100 * time.Millisecond)
	}
	_, refusal, answered := b.arrive(b.request(dis, 100))
	if !answered || refusal.Reason != api.ReasonKVUnreachable {
		t.Errorf("answered %v: %+v", answered, refusal)
	}
	b.do(routing.ViewChanged{Workers: []*controlv1.WorkerRecord{prefill("p1"), decode("d1"), decode("d2")}, Live: true})
	b.do(routing.Connected{Worker: routing.Ref{ID: "d2", Epoch: 1}})
	b.do(load("d2", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.BlocksFree = 0 }))
	r := b.request(dis, 100)
	if d, refusal, answered := b.arrive(r); answered {
		t.Fatalf("%v, %+v", d, refusal)
	}
	if d, _, _ := answerTo(r.ID, b.do(load("d2", controlv1.Role_ROLE_DECODE, nil))); d.Decode.ID != "d2" || d.Prefill.ID != "p1" {
		t.Errorf("%v", d)
	}
}

// What is remembered is of these starts of the workers, for a while, and bounded.
func TestBrokenPathsAreForgotten(t *testing.T) {
	b := newBench(t, nil, prefill("p1"), decode("d1"))
	d, _, _ := b.arrive(b.request(auto, 100))
	b.unreached(d)
	again := decode("d1")
	again.Epoch = 2
	b.do(routing.ViewChanged{Workers: []*controlv1.WorkerRecord{prefill("p1"), again}, Live: true})
	b.do(routing.Disconnected{Worker: routing.Ref{ID: "d1", Epoch: 1}})
	if n := b.f.BrokenPaths(); n != 0 {
		t.Errorf("%d broken paths of a worker that is gone", n)
	}
	b.do(routing.Connected{Worker: routing.Ref{ID: "d1", Epoch: 2}})
	d, _, _ = b.arrive(b.request(auto, 100))
	b.unreached(d)
	if b.pass(4 * time.Minute); b.f.BrokenPaths() != 1 {
		t.Error("forgotten too early")
	}
	if b.pass(2 * time.Minute); b.f.BrokenPaths() != 0 {
		t.Error("not forgotten")
	}
	if next, ok := b.f.Next(); ok {
		t.Errorf("a tick is due at %v", next)
	}

	var records []*controlv1.WorkerRecord
	for i := range 65 {
		records = append(records, prefill(fmt.Sprint("p", i)), decode(fmt.Sprint("d", i)))
	}
	b = newBench(t, nil, records...)
	for range 65 * 65 {
		d, refusal, _ := b.arrive(b.request(dis, 100))
		if d.Prefill.ID == "" {
			t.Fatalf("%+v", refusal)
		}
		b.unreached(d)
	}
	if n := b.f.BrokenPaths(); n != 4096 {
		t.Errorf("%d broken paths", n)
	}
}

// What a worker says of it is one line, and short.
func TestWhyIsBounded(t *testing.T) {
	refusal := routing.Unreachable("p1", "d1", strings.Repeat("é\n", 1000), 0)
	if strings.Contains(refusal.Message, "\n") || len(refusal.Message) > 800 || strings.Contains(refusal.Message, "�") {
		t.Errorf("%q", refusal.Message)
	}
}
