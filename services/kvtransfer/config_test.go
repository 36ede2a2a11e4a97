package kvtransfer_test

import (
	"math"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/memory"
	store "github.com/tandem-serving/tandem/services/kvtransfer"
)

func TestMemoryOfStores(t *testing.T) {
	for _, c := range []struct {
		name    string
		memory  bytesize.Size
		stores  int
		left    int64
		want    bytesize.Size
		refused bool
	}{
		{"plenty", bytesize.Auto, 1, 64 << 30, 4 << 30, false},
		{"half of what is left", bytesize.Auto, 1, 2<<30 + 192<<20, 1 << 30, false},
		{"of each", bytesize.Auto, 2, 4<<30 + 192<<20, 1 << 30, false},
		{"not known", bytesize.Auto, 1, math.MaxInt64, 4 << 30, false},
		{"asked for", 3 << 30, 1, 4 << 30, 3 << 30, false},
		{"asked for too much", 3 << 30, 2, 4 << 30, 0, true},
		{"none", bytesize.Auto, 1, 100 << 20, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := store.Config{Memory: c.memory}
			err := config.Fit(c.stores, memory.Left{Bytes: c.left, By: "/limit"})
			if (err != nil) != c.refused || err == nil && config.Memory != c.want {
				t.Errorf("%v, %v; want %v", config.Memory.String(), err, c.want.String())
			}
			if err != nil && !strings.HasPrefix(err.Error(), "store-memory: ") {
				t.Errorf("error %v does not begin with the flag", err)
			}
		})
	}
}
