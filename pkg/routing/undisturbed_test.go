package routing_test

import (
	"strings"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// Once prompts come that are in time only where nobody decodes, a prefill worker is left to prompts, though it
// would serve a short request in less time than the decode worker, and until they no longer come. What it
// decodes already makes nobody ask for more time for good.
func TestPrefillWorkersAreLeftToPrompts(t *testing.T) {
	p, d := aggregatedPrefill("p"), decode("d")
	for _, r := range []*controlv1.WorkerRecord{p, d} {
		r.KeepsTpot = true
		r.Capacity.Blocks, r.Capacity.MaxBatchTokens, r.Capacity.MaxSequences, r.Capacity.MaxWaiting, r.Capacity.ChunkTokens = 10_000, 1024, 64, 64, 512
	}
	b := newBench(t, nil, p, d)
	report := func(decoding uint32) {
		for id, role := range map[string]controlv1.Role{"p": controlv1.Role_ROLE_PREFILL, "d": controlv1.Role_ROLE_DECODE} {
			b.do(load(id, role, func(r *controlv1.LoadReport) {
				r.BlocksFree, r.BlocksTotal, r.StepPromptTokens = 10_000, 10_000, 256
				r.StepTime = &controlv1.StepTimeModel{BaseMs: 20, PerTokenMs: .125, PerContextTokenMs: .001, Samples: 1000, MostTokens: 512}
				r.DecodingSequences, r.DecodingContextTokens = decoding, uint64(decoding)*1000
				if role == controlv1.Role_ROLE_DECODE {
					r.DecodingSequences, r.DecodingContextTokens = 30, 30*1000
				}
			}))
		}
	}
	const soon = 260 * time.Millisecond // 1,400 tokens take 235 ms alone, and 295 ms beside a sequence
	ask := func(tokens int) (routing.Dispatch, routing.Refusal) {
		t.Helper()
		b.now = b.now.Add(100 * time.Millisecond)
		r := b.request(auto, tokens)
		r.MaxNew, r.TTFT = 64, soon
		got, refusal, answered := b.arrive(r)
		if !answered {
			t.Fatal("a request got no answer")
		}
		b.do(routing.Ended{ID: r.ID, Served: true, Tokens: 64})
		return got, refusal
	}
	report(0)
	for range 20 {
		if got, refusal := ask(100); got.Decode.ID != "p" {
			t.Fatalf("a short request at first: %+v, %+v", got, refusal)
		}
	}
	report(1)
	if _, refusal := ask(1400); !strings.Contains(refusal.Message, "retry later or ask for more time") {
		t.Fatalf("a long prompt where everybody decodes: %+v", refusal)
	}
	b.now = b.now.Add(time.Second)
	report(0)
	if got, refusal := ask(1400); got.Prefill.ID != "p" {
		t.Errorf("a long prompt: %+v, %+v", got, refusal)
	}
	for n := range 2000 {
		report(0)
		got, refusal := ask(100)
		switch {
		case got.Decode.ID == "":
			t.Fatalf("%d: %+v", n, refusal)
		case n == 0 && got.Decode.ID == "p":
			t.Errorf("a short request after long ones: %+v", got)
		case got.Decode.ID == "p":
			return
		}
	}
	t.Error("the prefill worker is left to prompts for good")
}
