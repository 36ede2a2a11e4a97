package routing_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// many is a router with so many workers of each role.
func many(c routing.Config, workers int) (*routing.Router, time.Time) {
	f, now := routing.New(c, rand.New(rand.NewPCG(1, 2))), time.Unix(1000, 0)
	var records []*controlv1.WorkerRecord
	for i := range workers {
		records = append(records, aggregatedPrefill(fmt.Sprint("p", i)), decode(fmt.Sprint("d", i)))
	}
	f.Handle(now, routing.ViewChanged{Workers: records, Live: true})
	for _, r := range records {
		ref := routing.Ref{ID: r.GetId(), Epoch: 1}
		f.Handle(now, routing.BlocksListed{Worker: ref, Response: &workerv1.ListBlocksResponse{Epoch: 1}})
		f.Handle(now, routing.Connected{Worker: ref})
	}
	return f, now
}

func TestOmitCandidates(t *testing.T) {
	decide := func(omit bool) routing.Dispatch {
		c := config()
		c.OmitCandidates = omit
		f, now := many(c, 8)
		d, refusal, ok := answerTo("r", f.Handle(now, routing.Arrived{Request: routing.Request{ID: "r", Tenant: "t", Model: "fable", Mode: dis, Arrived: now, Tokens: 99, MaxNew: 32}}))
		if !ok {
			t.Fatalf("refused: %v", refusal)
		}
		return d
	}
	all, none := decide(false), decide(true)
	if len(all.Decision.GetCandidates()) != 16 || len(none.Decision.GetCandidates()) != 0 {
		t.Errorf("%d candidates are shown, and %d", len(all.Decision.GetCandidates()), len(none.Decision.GetCandidates()))
	}
	if all.Decode != none.Decode || all.Prefill != none.Prefill || all.Decision.GetReason() != none.Decision.GetReason() {
		t.Errorf("%v without candidates, and %v with them", none, all)
	}
}

// What a decision and a load report with the look at the clock after it cost.
func BenchmarkWorkers(b *testing.B) {
	for _, workers := range []int{64, 1000} {
		f, now := many(config(), workers/2)
		b.Run(fmt.Sprintf("decide/workers=%d", workers), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f.Handle(now, routing.Arrived{Request: routing.Request{ID: "r", Tenant: "t", Model: "fable", Mode: dis, Arrived: now, Tokens: 99, MaxNew: 32}})
				f.Handle(now, routing.Ended{ID: "r"})
			}
		})
		b.Run(fmt.Sprintf("report/workers=%d", workers), func(b *testing.B) {
			b.ReportAllocs()
			for n := uint64(1); b.Loop(); n++ {
				now = now.Add(25 * time.Millisecond)
				f.Handle(now, routing.LoadReported{Report: &controlv1.LoadReport{Origin: &controlv1.Origin{Id: "p1", Epoch: 1, Sequence: n}, BlocksFree: 9}})
				f.Next()
			}
		})
		b.Run(fmt.Sprintf("report-while-one-waits/workers=%d", workers), func(b *testing.B) {
			f, now := many(config(), workers/2)
			for i := 0; f.Waiting() == 0; i++ {
				f.Handle(now, routing.Arrived{Request: routing.Request{ID: fmt.Sprint("r", i), Tenant: fmt.Sprint("t", i), Model: "fable", Mode: dis, Arrived: now, Tokens: 99, MaxNew: 32, Deadline: now.Add(time.Hour)}})
			}
			b.ReportAllocs()
			for n := uint64(1); b.Loop(); n++ {
				now = now.Add(time.Millisecond / 32)
				of := fmt.Sprint("p", n%uint64(workers/2))
				f.Handle(now, routing.LoadReported{Report: &controlv1.LoadReport{Origin: &controlv1.Origin{Id: of, Epoch: 1, Sequence: 1 + n/uint64(workers/2)}, WaitingSequences: 9}})
				f.Next()
			}
		})
	}
}
