package routing_test

import (
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// A request that waits for room goes as soon as a report tells of room, or when reports
// alone have told of none for long enough; its prompt is hashed once however often the
// workers are looked at.
func TestWaitsForRoom(t *testing.T) {
	report := func(free uint32) routing.LoadReported {
		return load("d1", controlv1.Role_ROLE_DECODE, func(r *controlv1.LoadReport) { r.BlocksFree = free })
	}
	for _, test := range []struct {
		name  string
		after func(b *bench) []routing.Action
		goes  bool
	}{
		{"the same report", func(b *bench) []routing.Action { return b.do(report(0)) }, false},
		{"more, not enough", func(b *bench) []routing.Action { return b.do(report(1)) }, false},
		{"enough", func(b *bench) []routing.Action { return b.do(report(50)) }, true},
		{"a while", func(b *bench) []routing.Action { return b.pass(400 * time.Millisecond) }, false},
		{"too long", func(b *bench) []routing.Action {
			actions := b.pass(300 * time.Millisecond)
			actions = append(actions, b.do(report(0))...)
			return append(actions, b.pass(300*time.Millisecond)...)
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, nil, decode("d1"))
			b.do(report(0))
			r := b.request(agg, 100)
			r.Hashes = numbered(b.f)
			if _, _, answered := b.arrive(r); answered {
				t.Fatal("sent to a worker that is full")
			}
			d, _, _ := answerTo(r.ID, test.after(b))
			if goes := d.Decode.ID == "d1"; goes != test.goes {
				t.Errorf("dispatched: %v", goes)
			}
		})
	}
}
