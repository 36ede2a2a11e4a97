package fleet_test

import (
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/services/router/internal/fleet"
)

// A request that waits for room goes as soon as a report tells of room, or when
// the report that told of none is too old to be believed; its prompt is hashed
// once however often the workers are looked at.
func TestWaitsForRoom(t *testing.T) {
	report := func(free uint32) fleet.LoadReported {
		return load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.BlocksFree = free })
	}
	for _, test := range []struct {
		name  string
		after func(b *bench) []fleet.Action
		goes  bool
	}{
		{"the same report", func(b *bench) []fleet.Action { return b.do(report(0)) }, false},
		{"more, not enough", func(b *bench) []fleet.Action { return b.do(report(1)) }, false},
		{"enough", func(b *bench) []fleet.Action { return b.do(report(50)) }, true},
		{"no report for long", func(b *bench) []fleet.Action { return b.pass(3100 * time.Millisecond) }, true},
		{"reports go on", func(b *bench) []fleet.Action {
			actions := b.pass(2 * time.Second)
			actions = append(actions, b.do(report(0))...)
			return append(actions, b.pass(2*time.Second)...)
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, nil, decode("d1"))
			b.do(report(0))
			hashed := 0
			r := b.request(agg, 100)
			r.Hashes = func(string, string, int) []kvcache.Hash {
				hashed++
				return []kvcache.Hash{1, 2, 3}
			}
			if _, _, answered := b.arrive(r); answered {
				t.Fatal("sent to a worker that is full")
			}
			d, _, _ := answerTo(r.ID, test.after(b))
			if goes := d.Decode.ID == "d1"; goes != test.goes {
				t.Errorf("dispatched: %v", goes)
			}
			if hashed != 1 {
				t.Errorf("hashed %d times", hashed)
			}
		})
	}
}
