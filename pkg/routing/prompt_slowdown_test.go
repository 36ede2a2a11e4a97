package routing_test

import (
	"fmt"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// TestAnswersLeaveTimeToPrompts: a prefill worker that decodes the quickest decodes an answer while
// few prompts come, and leaves it to a decode worker while many come that would have little of its
// steps beside it.
func TestAnswersLeaveTimeToPrompts(t *testing.T) {
	for _, c := range []struct {
		name    string
		budget  uint64 // tokens of a prompt beside others
		come    int    // prompts that came in the last two seconds
		routers int    // others, that got as many
		foreign int    // prefill workers of another model
		away    string // why there are others that get no requests; empty: there are none
		want    string // who decodes
	}{
		{"few prompts", 16, 1, 0, 0, "", "p"},
		{"few prompts at one router", 16, 4, 0, 0, "", "p"},
		{"few prompts at each of many routers", 16, 4, 20, 0, "", "d"},
		{"many prompts", 16, 40, 0, 0, "", "d"},
		{"many prompts, which workers of another model do not take", 16, 40, 0, 20, "", "d"},
		{"many prompts, beside workers that drain", 16, 40, 0, 0, "drains", "d"},
		{"many prompts, beside workers that are gone", 16, 40, 0, 0, "gone", "d"},
		{"many prompts, beside workers of another version", 16, 40, 0, 0, "foreign", "d"},
		{"many prompts, with whole chunks beside others", 0, 40, 0, 0, "", "p"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, d := aggregatedPrefill("p"), decode("d")
			for _, r := range []*controlv1.WorkerRecord{p, d} {
				r.Capacity.Blocks, r.Capacity.MaxBatchTokens, r.Capacity.MaxSequences, r.Capacity.MaxWaiting = 4000, 2048, 256, 256
			}
			workers := []*controlv1.WorkerRecord{p, d}
			for i := range c.foreign {
				f := aggregatedPrefill(fmt.Sprint("f", i))
				f.Model, f.ModelDigest = "other", "o"
				workers = append(workers, f)
			}
			if c.away != "" {
				for i := range 10 {
					a := aggregatedPrefill(fmt.Sprint("a", i))
					if c.away == "foreign" {
						a.Layout.ArithmeticClass = "other"
					}
					workers = append(workers, a)
				}
			}
			b := newBench(t, func(c *routing.Config) { c.Router = "r" }, workers...)
			b.do(routing.PolicyChanged{Policy: &controlv1.Policy{Versions: []*controlv1.ModelVersion{{Model: "fable", ModelDigest: "m", ArithmeticClass: "c"}}}})
			for i := range 10 {
				switch ref := (routing.Ref{ID: fmt.Sprint("a", i), Epoch: 1}); c.away {
				case "drains":
					b.do(routing.Leaving{Worker: ref})
				case "gone":
					b.do(routing.Disconnected{Worker: ref})
				}
			}
			for i := range c.routers {
				workers = append(workers, &controlv1.WorkerRecord{Id: fmt.Sprint("r", i), Role: controlv1.Role_ROLE_ROUTER, Epoch: 1})
			}
			b.do(routing.ViewChanged{Workers: workers, Live: true})
			told := uint64(0)
			report := func() {
				told++
				for i := range c.routers {
					b.do(routing.RouterReported{Report: &controlv1.RouterReport{Origin: &controlv1.Origin{Id: fmt.Sprint("r", i), Epoch: 1, Sequence: told}}})
				}
				for id, role := range map[string]controlv1.Role{"p": controlv1.Role_ROLE_PREFILL, "d": controlv1.Role_ROLE_DECODE} {
					b.do(load(id, role, func(r *controlv1.LoadReport) {
						r.BlocksFree, r.BlocksTotal, r.StepPromptTokens, r.CrowdedStepPromptTokens = 4000, 4000, 512, c.budget
						r.StepTime = &controlv1.StepTimeModel{BaseMs: 5, PerTokenMs: .05, Samples: 1000, MostTokens: 512}
						if id == "d" {
							r.StepTime.BaseMs = 20
						}
					}))
				}
			}
			for range c.come {
				report()
				r := b.request(dis, 256)
				if got, refusal, answered := b.arrive(r); !answered || got.Prefill.ID != "p" {
					t.Fatalf("%+v, %+v", got, refusal)
				}
				b.do(routing.Ended{ID: r.ID})
				b.now = b.now.Add(2 * time.Second / time.Duration(c.come))
			}
			report()
			got, refusal, answered := b.arrive(b.request(auto, 256))
			if !answered || got.Decode.ID != c.want {
				t.Errorf("%+v, %+v; want it decoded by %s", got, refusal, c.want)
			}
		})
	}
}
