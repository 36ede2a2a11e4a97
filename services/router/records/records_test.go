package records_test

import (
	"fmt"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/services/router/records"
)

// A request that outlasts its place in the ring keeps little of its decisions, and one in the ring
// all of them.
func TestRecordsOfLongRequests(t *testing.T) {
	decision := func() *controlv1.Decision {
		return &controlv1.Decision{Decode: "d", Candidates: []*controlv1.Candidate{{WorkerId: "d"}}, Others: []*controlv1.OtherCandidates{{Workers: 1}}}
	}
	ring, before, after := records.New(), decision(), decision()
	long := ring.Add("", "long", records.HashOf("a"), time.Unix(1, 0))
	long.Decided(before)
	for i := range records.Kept - 1 {
		ring.Add("", fmt.Sprint(i), records.HashOf("b"), time.Unix(2, 0))
	}
	if got, matches := ring.GetOwn("", "long", "a"); matches != 1 || len(got.GetDecisions()[0].GetCandidates()) != 1 {
		t.Errorf("the oldest in the ring: %v, %d", got, matches)
	}
	ring.Add("", "one more", records.HashOf("b"), time.Unix(3, 0))
	if _, matches := ring.Get("long"); matches != 0 {
		t.Error("it is still there")
	}
	long.Decided(after)
	for _, d := range []*controlv1.Decision{before, after} {
		if d.GetDecode() != "d" || d.GetCandidates() != nil || d.GetOthers() != nil {
			t.Errorf("it keeps %v", d)
		}
	}
}
