package integration_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/loadtest/tail"
	"github.com/tandem-serving/tandem/pkg/api"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
)

// The stages cover the whole of a request, and the figures made of them
// agree with one another.
func TestTimingsAddUp(t *testing.T) { timingsAddUp(t, clustertest.Start(t, nil).Client) }

func timingsAddUp(t *testing.T, m *clustertest.Client) {
	for _, mode := range []inferencev1.Mode{disaggregated, aggregated, inferencev1.Mode_MODE_AUTO} {
		for _, maxTokens := range []uint32{1, 2, 40} {
			r := generate(t, m, request(longPrompt(3), maxTokens, 0, mode))
			x := r.Finished.GetTimings()
			var sum time.Duration
			for stage, took := range api.StagesOf(x) {
				sum += took
				if took < 0 {
					t.Errorf("%v, %d tokens: %v is negative: %v", mode, maxTokens, api.Stage(stage), x)
				}
			}
			if sum.Nanoseconds() != x.GetTotalNs() || x.GetTotalNs() <= 0 {
				t.Errorf("%v, %d tokens: stages add up to %d of %d: %v", mode, maxTokens, sum, x.GetTotalNs(), x)
			}
			if x.GetTtftNs() <= 0 || x.GetTtftNs() > x.GetTotalNs() || x.GetPrefillComputeNs() <= 0 {
				t.Errorf("%v, %d tokens: ttft %d, prefill compute %d of %d", mode, maxTokens, x.GetTtftNs(), x.GetPrefillComputeNs(), x.GetTotalNs())
			}
			// Tokens may come together, all of them where the first was late: then nothing is
			// between them.
			rest := x.GetTotalNs() - x.GetTtftNs()
			if x.GetTpotNs() < 0 || x.GetTpotNs()*int64(maxTokens-1) > rest || x.GetSecondTokenNs() < 0 || x.GetSecondTokenNs() > rest {
				t.Errorf("%v, %d tokens: tpot %d, second token %d, %d after the first", mode, maxTokens, x.GetTpotNs(), x.GetSecondTokenNs(), rest)
			}
			want := int64(0)
			if n := int64(r.Finished.GetUsage().GetCompletionTokens()); n > 1 {
				want = rest / (n - 1)
			}
			if x.GetTpotNs() != want || maxTokens == 1 && x.GetSecondTokenNs() != 0 {
				t.Errorf("%v, %d tokens: tpot %d, want %d; second token %d", mode, maxTokens, x.GetTpotNs(), want, x.GetSecondTokenNs())
			}
			if sent := x.GetTransferBytes() > 0; sent != (r.Finished.GetRoute().GetMode() == disaggregated && maxTokens > 1) {
				t.Errorf("%v, %d tokens: %d bytes of KV sent", mode, maxTokens, x.GetTransferBytes())
			}
		}
	}
}

// The load instrument imports nothing of pkg, so it has a list of its own.
func TestLoadtestKnowsTheStages(t *testing.T) {
	want := []tail.Stage{tail.Dispatch}
	for s := range api.NumStages {
		want = append(want, tail.Stage(s.String()))
	}
	if got := tail.Stages(); !slices.Equal(got, append(want, tail.Other)) {
		t.Errorf("got %q", got)
	}
}
