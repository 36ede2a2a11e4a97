package simulate_test

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/simulate"
)

// Routers learn that the network between two workers is slow, and send hardly any KV there, though
// they use both workers with others.
func TestSlowPairIsAvoided(t *testing.T) {
	c := config(2, 2)
	c.Mode = disaggregated
	c.Network.Pairs = []simulate.Pair{{Between: [2]simulate.Hosts{{"p-1"}, {"d-1"}}, Latency: c.Network.Latency, BytesPerSecond: 100e6}}
	used := make(map[[2]string]int)
	all := 0
	for _, r := range run(t, c, 15, 30*time.Second, "--prompt-tokens=1024", "--output-tokens=16", "--seed=5").Records {
		if r.Outcome != record.Completed {
			t.Fatalf("%+v", r)
		}
		used[[2]string{r.Route.GetPrefill(), r.Route.GetDecode()}]++
		all++
	}
	if slow := used[[2]string{"p-1", "d-1"}]; slow*10 > all {
		t.Errorf("%d of %d requests used the slow pair: %v", slow, all, used)
	}
	for _, pair := range [][2]string{{"p-1", "d-2"}, {"p-2", "d-1"}, {"p-2", "d-2"}} {
		if used[pair]*10 < all {
			t.Errorf("%d of %d requests used %v: %v", used[pair], all, pair, used)
		}
	}
}
