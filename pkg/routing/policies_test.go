package routing_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// decodes is where requests for one worker go by a policy, in turn.
func decodes(b *bench, requests ...routing.Request) (to []string) {
	for _, r := range requests {
		d, refusal, ok := b.arrive(r)
		if !ok || d.Prefill != (routing.Ref{}) {
			b.t.Fatalf("%s: %+v, %+v", r.ID, d, refusal)
		}
		to = append(to, d.Decode.ID)
	}
	return to
}

func TestPolicies(t *testing.T) {
	of := func(policy string, workers ...*controlv1.WorkerRecord) *bench {
		return newBench(t, func(c *routing.Config) { c.Policy = policy }, workers...)
	}
	three := func(policy string) *bench { return of(policy, decode("a"), decode("b"), decode("c")) }
	running := func(id string, sequences uint32) routing.LoadReported {
		return load(id, controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.RunningSequences = sequences })
	}
	t.Run("round-robin", func(t *testing.T) {
		b := three("round-robin")
		var requests []routing.Request
		for range 6 {
			requests = append(requests, b.request(agg, 40))
		}
		got := decodes(b, requests...)
		if !slices.Equal(got[:3], got[3:]) || len(slices.Compact(slices.Sorted(slices.Values(got)))) != 3 {
			t.Errorf("requests went to %v", got)
		}
	})
	t.Run("least-loaded", func(t *testing.T) {
		b := three("least-loaded")
		b.do(running("a", 2))
		b.do(running("b", 1))
		b.do(running("c", 2))
		if got := decodes(b, b.request(agg, 40)); got[0] != "b" {
			t.Errorf("the request went to %v", got)
		}
	})
	t.Run("prefix-affinity", func(t *testing.T) {
		b := three("prefix-affinity")
		b.do(routing.BlocksListed{Worker: routing.Ref{ID: "c", Epoch: 1}, Response: &workerv1.ListBlocksResponse{Epoch: 1, BlockHashes: []uint64{5, 6, 7}}})
		b.do(running("c", 2))
		r := b.request(agg, 128)
		r.Hashes = hashed(b.f, func(routing.BlockKey) []kvcache.Hash { return []kvcache.Hash{5, 6, 7} })
		if got := decodes(b, r); got[0] != "c" {
			t.Errorf("the request went to %v", got)
		}
	})
	t.Run("modes", func(t *testing.T) {
		pair := []*controlv1.WorkerRecord{prefill("p"), decode("d")}
		for _, c := range []struct {
			policy string
			tokens int
			apart  bool
		}{{"slo", 40, false}, {"slo", 128, true}, {"aggregated", 128, false}, {"disaggregated", 40, true}} {
			b := of(c.policy, pair...)
			d, refusal, ok := b.arrive(b.request(auto, c.tokens))
			if !ok || (d.Prefill.ID == "p") != c.apart {
				t.Errorf("%s, %d tokens: %+v, %+v", c.policy, c.tokens, d, refusal)
			}
			if reason := d.Decision.GetReason(); c.policy != "slo" && reason != "the policy is "+c.policy+" mode" {
				t.Errorf("%s: the reason is %q", c.policy, reason)
			}
		}
	})
}

func TestPolicyNames(t *testing.T) {
	for name, want := range map[string]string{
		"slo": "", "round-robin": "", "round-robbin": `did you mean "round-robin"`, "best": strings.Join(routing.Policies(), ", "),
	} {
		c := config()
		c.Policy = name
		if err := c.Validate(); (err == nil) != (want == "") || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}
