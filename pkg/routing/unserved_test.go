package routing_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// A router says that requests could be served if and only if one that comes is.
func TestUnserved(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var records []*controlv1.WorkerRecord
		for i := range rapid.IntRange(0, 4).Draw(r, "workers") {
			make := rapid.SampledFrom([]func(string) *controlv1.WorkerRecord{prefill, aggregatedPrefill, decode}).Draw(r, "kind")
			record := make(fmt.Sprint("w", i))
			record.LayoutDigest = rapid.SampledFrom([]uint64{7, 7, 8}).Draw(r, "layout")
			records = append(records, record)
		}
		policy := rapid.SampledFrom(routing.Policies()).Draw(r, "policy")
		b := newBench(t, nil, records...)
		b.do(routing.PolicyChanged{Policy: &controlv1.Policy{Routing: &policy}})
		for _, record := range records {
			ref := routing.Ref{ID: record.GetId(), Epoch: 1}
			b.do(load(ref.ID, record.GetRole(), nil))
			switch rapid.IntRange(0, 5).Draw(r, "state") {
			case 0:
				b.do(routing.Disconnected{Worker: ref})
			case 1:
				b.do(routing.Leaving{Worker: ref})
			}
		}
		q := b.request(auto, 100)
		why := b.f.Unserved()
		d, refusal, answered := b.arrive(q)
		if !answered {
			actions := b.pass(2 * time.Second)
			if d, refusal, answered = answerTo(q.ID, actions); !answered {
				r.Fatalf("no answer, and %q is said", why)
			}
		}
		if (why == "") != (d.Decode.ID != "") {
			r.Fatalf("%q is said, and the request went to %+v: %s", why, d.Decode, refusal.Message)
		}
		if b.f.Disaggregated() != (policy == "disaggregated") {
			r.Fatalf("policy %s", policy)
		}
	})
}
