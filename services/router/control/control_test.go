package control_test

import (
	"fmt"
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

// Where several tenants have requests of one id, an operator gets the last one.
func TestExplainOfOneID(t *testing.T) {
	ring := records.New()
	for i, id := range []string{"same", "same", "same", "same-1"} {
		ring.Add(fmt.Sprint(i), id, records.HashOf(id), time.Unix(int64(5-(i-1)*(i-1)), 0))
	}
	e, err := control.New(control.Deps{Records: ring}).Explain(t.Context(), &controlv1.ExplainRequest{RequestId: "same"})
	if err != nil || e.GetRequestId() != "same" || e.GetArrived().AsTime().Unix() != 5 {
		t.Errorf("%v, %v", e, err)
	}
}
