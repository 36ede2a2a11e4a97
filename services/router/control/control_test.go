package control_test

import (
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/services/router/control"
	"github.com/tandem-serving/tandem/services/router/records"
)

// The slowest request is found where another tenant's has the same id.
func TestExplainSlowestOfOneID(t *testing.T) {
	ring := records.New()
	for owner, ttft := range map[string]int64{"acme": 1, "globex": 2} {
		r := ring.Add(owner, "same", records.HashOf(owner), time.Unix(1, 0))
		r.Ended(time.Unix(2, 0), nil, joining.Finish{Usage: &inferencev1.Usage{CompletionTokens: 1}, Timings: &inferencev1.Timings{TtftNs: ttft}}, nil)
	}
	for percentile, ttft := range map[float64]int64{100: 2, 50: 1} {
		e, err := control.New(control.Deps{Records: ring}).Explain(t.Context(), &controlv1.ExplainRequest{Slowest: &controlv1.Slowest{Percentile: percentile}})
		if err != nil || e.GetTimings().GetTtftNs() != ttft || e.GetRanked() != 2 {
			t.Errorf("percentile %v: %v, %v", percentile, e, err)
		}
	}
}
