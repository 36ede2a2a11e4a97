package membership_test

import (
	"regexp"
	"testing"

	"github.com/tandem-serving/tandem/pkg/membership"
)

func TestEpochsAndIDs(t *testing.T) {
	epochs, ids := make(map[uint64]bool), make(map[string]bool)
	shape := regexp.MustCompile(`^decode-[^./]+-[0-9a-f]{8}$`)
	for range 1000 {
		epochs[membership.NewEpoch()] = true
		id := membership.NewID("decode")
		if ids[id] = true; !shape.MatchString(id) {
			t.Fatalf("id %q", id)
		}
	}
	if len(epochs) != 1000 || epochs[0] || len(ids) != 1000 {
		t.Errorf("%d epochs and %d ids of 1000 are different; epoch 0: %v", len(epochs), len(ids), epochs[0])
	}
}
