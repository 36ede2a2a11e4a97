package simulate_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
	"github.com/tandem-serving/tandem/pkg/blockstore"
	"github.com/tandem-serving/tandem/pkg/offload"
	"github.com/tandem-serving/tandem/simulate"
)

// stored is a cluster whose prefill workers hold a few prompts only, beside so many stores.
func stored(stores int) simulate.Config {
	c := config(2, 1)
	c.Mode, c.CheckContext, c.Check = inferencev1.Mode_MODE_DISAGGREGATED, true, true
	for _, w := range c.Workers {
		w.StorePuts, w.FetchBandwidth = offload.DefaultPuts, offload.DefaultBandwidth
		if w.Role == controlv1.Role_ROLE_PREFILL {
			w.Blocks = 160
		}
	}
	for i := range stores {
		s := simulated(fmt.Sprintf("s-%d", i+1), controlv1.Role_ROLE_KVTRANSFER, c.Workers[0].Profile)
		s.Blocks, s.MaxPuts, s.MaxFetches = 2048, blockstore.DefaultPuts, blockstore.DefaultFetches
		c.Workers = append(c.Workers, s)
	}
	return c
}

// turns are prompts of which each begins with one of so many prefixes, in turn: a prefix has left the
// workers' caches when it comes again.
func turns(requests, prefixes int) *workload.List {
	const tokens = 32 * 32
	var source workload.List
	for i := range requests {
		ids := make([]uint32, tokens+40)
		for j := range ids {
			ids[j] = uint32((i%prefixes+1)*7+j)%30000 + 3
			if j >= tokens {
				ids[j] = uint32(i*50+j)%30000 + 3
			}
		}
		source = append(source, &workload.Request{
			Due: time.Duration(i) * 200 * time.Millisecond, Prompt: workload.Prompt{TokenIDs: ids}, MaxTokens: 4, Exact: true, Tenant: "t",
		})
	}
	return &source
}

// serve runs a cluster until all requests have ended, whose answers have to be those in want, where
// that has some.
func serve(t *testing.T, c simulate.Config, source *workload.List, want map[time.Duration][]uint32) (*simulate.Cluster, *record.Run) {
	t.Helper()
	cluster, err := simulate.New(c)
	if err != nil {
		t.Fatal(err)
	}
	got, err := cluster.Run(simulate.Load{Source: source, RequestTimeout: time.Minute, DrainTimeout: time.Minute, Ended: func(q *workload.Request, tokens []uint32, _ error) {
		if first, is := want[q.Due]; !is {
			want[q.Due] = slices.Clone(tokens)
		} else if !slices.Equal(first, tokens) {
			t.Errorf("the request of %v is answered %v, and %v before", q.Due, tokens, first)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if n := outcomes(got); n["completed"] != len(got.Records) {
		t.Fatal(n)
	}
	return cluster, got
}

// cached is which share of prompts' tokens prefill workers did not compute.
func cached(c *simulate.Cluster) float64 {
	return float64(c.PrefixUse().CachedTokens) / float64(c.PrefixUse().PromptTokens)
}

// What workers evict they find in a store again, and answers are those of a mesh without one.
func TestStoresBringPrefixesBack(t *testing.T) {
	const requests, prefixes = 120, 20
	answers := make(map[time.Duration][]uint32)
	without, _ := serve(t, stored(0), turns(requests, prefixes), answers)
	for stores := 1; stores <= 2; stores++ {
		with, _ := serve(t, stored(stores), turns(requests, prefixes), answers)
		t.Logf("%d stores: cached %.2f, without %.2f; %+v", stores, cached(with), cached(without), with.PrefixUse())
		if cached(with) < cached(without)+0.3 || with.PrefixUse().FetchedTokens == 0 {
			t.Errorf("%d stores: %.2f of the prompts' tokens are cached, %.2f without a store", stores, cached(with), cached(without))
		}
	}
}

// A store that dies, drains or cannot be reached costs hits and nothing else.
func TestStoresFail(t *testing.T) {
	answers := make(map[time.Duration][]uint32)
	serve(t, stored(0), turns(120, 20), answers)
	for name, events := range map[string][]simulate.Event{
		"dies":           {{At: 10 * time.Second, Do: simulate.Kill{Worker: "s-1"}}, {At: 14 * time.Second, Do: simulate.Start{Worker: "s-1"}}},
		"drains":         {{At: 10 * time.Second, Do: simulate.Drain{Worker: "s-1"}}, {At: 14 * time.Second, Do: simulate.Undrain{Worker: "s-1"}}},
		"is cut off":     {{At: 10 * time.Second, Do: simulate.Cut{Between: [2]simulate.Hosts{{"s-1"}, {"p-1", "p-2", "router-1"}}}}, {At: 18 * time.Second, Do: simulate.Heal{Between: [2]simulate.Hosts{{"s-1"}, {"p-1", "p-2", "router-1"}}}}},
		"is long gone":   {{At: 10 * time.Second, Do: simulate.Cut{Between: [2]simulate.Hosts{{"s-1"}, {"p-1", "p-2", "router-1"}}}}},
		"a worker dies":  {{At: 10 * time.Second, Do: simulate.Kill{Worker: "p-1"}}, {At: 12 * time.Second, Do: simulate.Start{Worker: "p-1"}}},
		"gets bad bytes": {{At: 10 * time.Second, Do: simulate.Corrupt{Worker: "s-1"}}, {At: 11 * time.Second, Do: simulate.Corrupt{Worker: "p-1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := stored(1)
			c.Events = events
			if name == "is long gone" {
				c.Check = false // routers and workers do not find it at rest
			}
			cluster, _ := serve(t, c, turns(120, 20), answers)
			t.Logf("cached %.2f; %+v", cached(cluster), cluster.PrefixUse())
			if cluster.PrefixUse().FetchedTokens == 0 {
				t.Error("nothing was fetched")
			}
			if n := cluster.PrefixUse().Puts[offload.PutLate]; n > 0 {
				t.Errorf("%d puts took too long: an offer that is not answered has failed, as in a live mesh", n)
			}
		})
	}
}
