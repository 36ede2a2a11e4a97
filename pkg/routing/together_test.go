package routing_test

import (
	"strings"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// TestOverloadUsesAllWorkersAlike: once a request is refused for want of time, those like it are
// done by one worker each, if more of them are served that way, and for a while only.
func TestOverloadUsesAllWorkersAlike(t *testing.T) {
	p, d := whole("p"), decode("d")
	for _, r := range []*controlv1.WorkerRecord{p, d} {
		r.KeepsTpot = true
		r.Capacity.Blocks, r.Capacity.MaxBatchTokens, r.Capacity.MaxSequences, r.Capacity.MaxWaiting = 1000, 1024, 64, 64
	}
	b := newBench(t, nil, p, d)
	// Steps as in decision 0045: prompts of 256 tokens and answers of 64.
	report := func(prompts uint64) {
		for id, role := range map[string]controlv1.Role{"p": controlv1.Role_ROLE_PREFILL, "d": controlv1.Role_ROLE_DECODE} {
			b.do(load(id, role, func(r *controlv1.LoadReport) {
				r.BlocksFree, r.BlocksTotal, r.StepPromptTokens = 1000, 1000, 512
				r.StepTime = &controlv1.StepTimeModel{BaseMs: 5, PerTokenMs: .05, PerContextTokenMs: .0001, Samples: 1000, MostTokens: 512}
				if r.WaitingTokens = prompts; prompts > 0 {
					r.WaitingSequences = 1
				}
			}))
		}
	}
	ask := func() (routing.Dispatch, routing.Refusal) {
		r := b.request(auto, 256)
		r.MaxNew, r.TTFT, r.TPOT = 64, 180*time.Millisecond, 25*time.Millisecond
		got, refusal, answered := b.arrive(r)
		if !answered {
			t.Fatal("a request got no answer")
		}
		return got, refusal
	}
	report(0)
	if got, refusal := ask(); got.Prefill.ID != "p" {
		t.Fatalf("in no overload: %+v, %+v", got, refusal)
	}
	b.now = b.now.Add(time.Second)
	report(100_000)
	if _, refusal := ask(); refusal.Message == "" {
		t.Fatal("nothing is refused")
	}
	b.now = b.now.Add(100 * time.Millisecond)
	report(0)
	got, refusal := ask()
	if got.Prefill.ID != "" || !strings.Contains(got.Decision.GetReason(), "all workers alike") {
		t.Fatalf("in overload: %+v, %+v", got, refusal)
	}
	b.now = b.now.Add(time.Minute)
	report(0)
	if got, refusal := ask(); got.Prefill.ID != "p" {
		t.Fatalf("after it: %+v, %+v", got, refusal)
	}
}
