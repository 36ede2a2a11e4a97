package routing_test

import (
	"testing"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// whole is a prefill worker that computes whole requests too.
func whole(id string) *controlv1.WorkerRecord {
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
		{"auto", auto, "slo", whole("p"), "p"},
		{"aggregated", agg, "slo", whole("p"), "p"},
		{"disaggregated", dis, "slo", whole("p"), "d"},
		{"a policy that predicts nothing", agg, "round-robin", whole("p"), "d"},
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

// Where no decode worker is left, prefill workers serve.
func TestPrefillWorkersServeAlone(t *testing.T) {
	b := newBench(t, nil, whole("p"), decode("d"))
	b.do(routing.Disconnected{Worker: routing.Ref{ID: "d", Epoch: 1}})
	got, refusal, answered := b.arrive(b.request(auto, 100))
	if !answered || got.Decode.ID != "p" || got.Prefill != (routing.Ref{}) {
		t.Fatalf("%+v, %+v", got, refusal)
	}
	for _, c := range got.Decision.GetCandidates() {
		if c.GetWorkerId() == "p" && c.GetExcluded() == "" {
			return
		}
	}
	t.Errorf("p is not shown: %v", got.Decision)
}

// Whole requests leave places in a prefill worker's batch for prompts: those that come when they
// have taken the others go to a decode worker.
func TestPlacesForPromptsAreKept(t *testing.T) {
	d := decode("d")
	d.Capacity.MaxSequences, d.Capacity.MaxWaiting = 64, 64
	b := newBench(t, nil, whole("p"), d)
	b.do(load("d", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) {
		r.RunningSequences, r.RunningContextTokens = 20, 20*1000
		r.StepTime.PerContextTokenMs = 0.001
	}))
	b.do(load("p", controlv1.Role_ROLE_PREFILL, func(r *controlv1.LoadReport) {
		r.RunningSequences, r.DecodingSequences = 14, 14 // of 16
	}))
	if got, refusal, answered := b.arrive(b.request(auto, 100)); !answered || got.Decode.ID != "d" {
		t.Errorf("%+v, %+v", got, refusal)
	}
}
