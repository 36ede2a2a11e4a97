package plan_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/plan"
	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/finetimer"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

// mesh answers each request after the same times, whatever else runs.
type mesh struct {
	ttft, tpot time.Duration
	context    int
	salts      chan string
}

func (m mesh) Describe(context.Context) (client.Description, error) {
	return client.Description{Kind: "tandem", Address: "a mesh", Model: "tiny", VocabularySize: 512, ContextTokens: m.context}, nil
}

func (m mesh) Do(_ context.Context, q *workload.Request, clock client.Clock, r *record.Record) workload.Answer {
	select {
	case m.salts <- q.CacheSalt:
	default:
	}
	r.Sent, r.Admitted = clock.Now(), clock.Now()
	for i := range q.MaxTokens {
		wait := m.tpot
		if i == 0 {
			wait = m.ttft
		}
		<-time.After(wait) // the latency that verify measures
		r.Arrivals = append(r.Arrivals, record.Arrival{At: clock.Now(), Tokens: 1})
	}
	r.OutputTokens, r.End, r.Outcome = q.MaxTokens, clock.Now(), record.Completed
	return workload.Answer{}
}

func (mesh) Close() error { return nil }

// A mesh with known latencies is beside the prediction, with the error of that.
func TestVerify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := question(t, with("--rate=20", "--slo=ttft:p99<300ms", "--duration=30s", "--warmup=1s")...)
		q.Load.Timer = finetimer.Portable
		m := mesh{ttft: 50 * time.Millisecond, tpot: 10 * time.Millisecond, context: q.Cluster.Spec().ContextTokens, salts: make(chan string, 1)}
		v, err := plan.Verify(t.Context(), q, plan.Size{Prefill: 1, Decode: 1}, m, "salt", nil)
		if err != nil {
			t.Fatal(err)
		}
		if salt := <-m.salts; salt != "salt" {
			t.Errorf("the cache's salt is %q", salt)
		}
		if v.Predicted.Requests != v.Measured.Requests || v.Measured.Requests < 500 || v.NotServed != 0 || len(v.Comparison) != 6 || v.WorstP99 == nil {
			t.Fatalf("%+v", v)
		}
		worst := 0.0
		for _, c := range v.Comparison {
			want := map[string]float64{"ttft": 50, "tpot": 10}[c.Latency]
			if c.MeasuredMs == nil || *c.MeasuredMs < 0.98*want || *c.MeasuredMs > 1.02*want {
				t.Errorf("%s %s: measured %v ms, want %v", c.Latency, c.Percentile, *c.MeasuredMs, want)
			}
			if off := *c.PredictedMs / *c.MeasuredMs - 1; off != *c.Error {
				t.Errorf("%s %s: the error is %v, want %v", c.Latency, c.Percentile, *c.Error, off)
			}
			if c.Percentile == "p99" {
				worst = max(worst, *c.Error, -*c.Error)
			}
		}
		if *v.WorstP99 != worst {
			t.Errorf("the worst p99 is off by %v, want %v", *v.WorstP99, worst)
		}
		var text strings.Builder
		if err := v.Write(&text); err != nil || !strings.Contains(text.String(), "TPOT p99") || !strings.Contains(text.String(), "largest error of a p99: ") {
			t.Errorf("%v: %s", err, text.String())
		}
	})
}

// A mesh of another model is refused before anything is sent.
func TestVerifyAnotherModel(t *testing.T) {
	q := question(t, with("--rate=20", "--slo=ttft:p99<300ms")...)
	_, err := plan.Verify(t.Context(), q, plan.Size{Prefill: 1, Decode: 1}, mesh{context: 77}, "", nil)
	if err == nil || !strings.Contains(err.Error(), "with a context of 77 tokens, and the plan is for tiny") {
		t.Errorf("%v", err)
	}
}

// What was not measured properly, or not as predicted, is an error.
func TestVerificationCheck(t *testing.T) {
	const within = 0.2
	for _, c := range []struct {
		name      string
		worst     float64 // below 0: unknown
		notServed int
		limited   string
		want      string
	}{
		{"as predicted", 0.1, 0, "", ""},
		{"a few were not served", 0.1, 10, "", ""},
		{"more than a few were not served", 0.1, 11, "", "the mesh did not complete 11 of 1000 requests"},
		{"the client was the limit", 0.1, 0, "the client used 99% of its 2 cores", "the client was the bottleneck: the client used 99% of its 2 cores"},
		{"not as predicted", 0.3, 0, "", "a p99 is off by 30.0%, more than 20% (--within): check that the mesh has 2 prefill and 1 decode worker, with"},
		{"no p99", -1, 0, "", "too few requests for a p99, which takes some 460: pass --duration 3m50s or more"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := plan.Verification{Size: plan.Size{Prefill: 2, Decode: 1}, RatePerSecond: 2, Measured: &plan.Prediction{Requests: 1000}, NotServed: c.notServed, Limited: c.limited}
			if c.worst >= 0 {
				v.WorstP99 = &c.worst
			}
			err := v.Check(within)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
