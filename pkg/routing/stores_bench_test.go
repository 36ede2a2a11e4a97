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

// What stores cost a decision: 16 prefill and 16 decode workers, a prompt of 64
// blocks of which each prefill worker has 8 and each store all.
func BenchmarkDecideWithStores(b *testing.B) {
	for _, stores := range []int{0, 1, 8} {
		b.Run(fmt.Sprintf("stores=%d", stores), func(b *testing.B) {
			f, now := routing.New(config(), rand.New(rand.NewPCG(1, 2))), time.Unix(1000, 0)
			var records []*controlv1.WorkerRecord
			for i := range 16 {
				records = append(records, prefill(fmt.Sprint("p", i)), decode(fmt.Sprint("d", i)))
			}
			for i := range stores {
				records = append(records, store(fmt.Sprint("s", i)))
			}
			f.Handle(now, routing.ViewChanged{Workers: records, Live: true})
			for _, r := range records {
				held := uint64(0)
				switch r.GetRole() {
				case controlv1.Role_ROLE_PREFILL:
					held = 8
				case controlv1.Role_ROLE_KVTRANSFER:
					held = 64
				}
				ref := routing.Ref{ID: r.GetId(), Epoch: 1}
				f.Handle(now, routing.BlocksListed{Worker: ref, Response: &workerv1.ListBlocksResponse{Epoch: 1, BlockHashes: sequence(held)}})
				f.Handle(now, routing.Connected{Worker: ref})
			}
			r := routing.Request{ID: "r", Tenant: "t", Model: "fable", Mode: dis, Arrived: now, Tokens: 64*32 + 1, MaxNew: 32, Hashes: numbered(f)}
			b.ReportAllocs()
			for b.Loop() {
				d, _, _ := answerTo("r", f.Handle(now, routing.Arrived{Request: r}))
				if (d.Source != nil) != (stores > 0) {
					b.Fatalf("%v", d)
				}
				f.Handle(now, routing.Ended{ID: "r"})
			}
		})
	}
}
