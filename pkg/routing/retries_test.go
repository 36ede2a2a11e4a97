package routing_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// Retries are a share of the requests at most, beside a few, in any ten seconds; what is refused
// before a worker began, and first tries, are not limited by it.
func TestRetriesAreAShare(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		share := rapid.SampledFrom([]float64{0, 0.1, 0.5, 2}).Draw(r, "share")
		b := newBench(t, func(c *routing.Config) { c.RetryShare = share }, decode("d1"), decode("d2"))
		var came, again []time.Time
		within := func(times []time.Time, d time.Duration) (n int) {
			for _, at := range times {
				if b.now.Sub(at) < d {
					n++
				}
			}
			return n
		}
		for range rapid.IntRange(1, 200).Draw(r, "requests") {
			b.now = b.now.Add(time.Duration(rapid.SampledFrom([]int{0, 0, 0, 1, 50, 3000, 20000}).Draw(r, "ms")) * time.Millisecond)
			q := b.request(agg, 10)
			q.Attempt = rapid.IntRange(0, 2).Draw(r, "attempt")
			q.Retry = q.Attempt > 0 && rapid.Bool().Draw(r, "retry")
			q.Failures = []routing.Failure{{Worker: routing.Ref{ID: "gone", Epoch: 9}}}
			_, refusal, answered := b.arrive(q)
			spent := answered && refusal.Reason == api.ReasonRetryBudget
			switch {
			case spent && (!q.Retry || refusal.Code != codes.Unavailable || refusal.RetryAfter <= 0 || refusal.Message[:4] != "gone"):
				r.Fatalf("%+v: %+v", q, refusal)
			case spent && share > 0 && within(again, 9*time.Second) < 16 && within(again, 11*time.Second) < 16:
				r.Fatalf("refused after %d retries", len(again))
			case q.Attempt == 0:
				came = append(came, b.now)
			case q.Retry && !spent:
				again = append(again, b.now)
				// One second is what the count is exact to.
				if most := 16 + share*float64(within(came, 11*time.Second)); float64(within(again, 9*time.Second)) > most+1 || share == 0 {
					r.Fatalf("%d retries in 9 s, after %d requests", within(again, 9*time.Second), within(came, 11*time.Second))
				}
			}
			b.do(routing.Ended{ID: q.ID})
			b.do(routing.Cancelled{ID: q.ID})
		}
	})
}

// A worker that dies leaves as many requests to be tried again as ran on it, which all are, whether or
// not another has room for them. Those of one that answers, or may, are a share of the requests.
func TestRetriesAfterAFailure(t *testing.T) {
	d1, other := routing.Ref{ID: "d1", Epoch: 1}, routing.Ref{ID: "d0", Epoch: 1}
	for _, c := range []struct {
		name          string
		first, second uint32 // requests that the workers have room for; the first one's fail
		running       int
		soon          bool // after they came
		failure       routing.Failure
		all           bool
		before        []routing.Failure
	}{
		{"dead, the other has room", 1000, 1000, 400, false, routing.Failure{Worker: d1, Gone: true, Lost: true}, true, nil},
		{"dead, the other is full", 100, 100, 200, false, routing.Failure{Worker: d1, Gone: true, Lost: true}, true, nil},
		{"dead, and had nearly all", 198, 2, 200, false, routing.Failure{Worker: d1, Gone: true, Lost: true}, true, nil},
		{"silent, the other is full", 100, 100, 200, false, routing.Failure{Worker: d1, Gone: true, Silent: true}, true, nil},
		{"silent, and had nearly all", 198, 2, 200, false, routing.Failure{Worker: d1, Gone: true, Silent: true}, false, nil},
		{"silent soon, and had nearly all", 198, 2, 200, true, routing.Failure{Worker: d1, Gone: true, Silent: true}, false, nil},
		{"its engine failed, and it had nearly all", 198, 2, 200, false, routing.Failure{Worker: d1, Gone: true}, false, nil},
		{"dead, and another one had left", 198, 2, 200, false, routing.Failure{Worker: d1, Gone: true, Lost: true}, true, []routing.Failure{{Worker: other, Gone: true, Leaves: true}}},
		{"dead, and so was that of a hedged attempt", 198, 2, 200, false, routing.Failure{Worker: d1, Gone: true, Lost: true}, true, []routing.Failure{{Worker: other, Gone: true, Lost: true, Beside: true}}},
		{"dead, as another one before", 198, 2, 200, false, routing.Failure{Worker: d1, Gone: true, Lost: true}, false, []routing.Failure{{Worker: other, Gone: true, Lost: true}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var records []*controlv1.WorkerRecord
			for id, most := range map[string]uint32{"d1": c.first, "d2": c.second} {
				r := decode(id)
				r.Capacity.MaxSequences, r.Capacity.Blocks = most, 10000
				records = append(records, r)
			}
			b := newBench(t, func(c *routing.Config) { c.TenantMaxRequests = 1000 }, records...)
			for _, r := range records {
				b.do(load(r.GetId(), controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.BlocksFree = 10000 }))
			}
			var failed []routing.Request
			for range c.running {
				r := b.request(agg, 1)
				d, refusal, _ := b.arrive(r)
				if d.Decode.ID == "" {
					t.Fatalf("%+v", refusal)
				}
				if d.Decode.ID == "d1" {
					failed = append(failed, r)
				}
			}
			if !c.soon {
				b.pass(time.Minute)
			}
			if c.failure.Lost {
				b.do(routing.Disconnected{Worker: d1})
			}
			retries := 0
			for _, r := range failed {
				b.do(routing.Ended{ID: r.ID, Failures: []routing.Failure{c.failure}})
				r.Attempt, r.Retry, r.Failures = 1, true, append(slices.Clone(c.before), c.failure)
				switch _, refusal, _ := b.arrive(r); refusal.Reason {
				case "":
					retries++
				case api.ReasonRetryBudget:
				default:
					t.Fatalf("%+v", refusal)
				}
			}
			if all := retries == len(failed); all != c.all {
				t.Errorf("%d retries of %d", retries, len(failed))
			}
		})
	}
}
