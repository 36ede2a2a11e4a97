package routing_test

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// last draws the highest number.
type last struct{}

func (last) IntN(n int) int { return n - 1 }

func TestRedial(t *testing.T) {
	var r routing.Redial
	between := func(least, most time.Duration) {
		t.Helper()
		if wait := r.Failed(last{}); wait < least || wait >= most+most/2 {
			t.Errorf("waits %v, which is not %v to %v", wait, least, most+most/2)
		}
	}
	between(50*time.Millisecond, 50*time.Millisecond)
	between(100*time.Millisecond, 100*time.Millisecond)
	for range 10 {
		r.Failed(last{})
	}
	between(15*time.Second, 15*time.Second)
	r.Connected()
	between(50*time.Millisecond, 50*time.Millisecond)
	for range 100 {
		r.Failed(last{})
	}
	between(time.Second, time.Second)
}
