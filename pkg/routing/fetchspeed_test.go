package routing_test

import (
	"math"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// How long a worker takes to fetch is predicted by what it fetched before, until that
// is old, and by the configuration where nothing was measured.
func TestFetchSpeedIsLearned(t *testing.T) {
	const (
		tokens  = 64*32 + 1
		given   = workerv1.FetchVerdict_FETCH_VERDICT_GIVEN
		assumed = 1 + 0.131 // a round trip, and 128 KiB at 1 GB/s, milliseconds
		// The last token is computed, in a step of its own.
		lastTokenMs = 1.1
	)
	type fetch struct {
		worker  string
		epoch   uint64
		verdict workerv1.FetchVerdict
		tokens  int
		took    time.Duration
	}
	measured := func(took time.Duration) fetch { return fetch{"p1", 1, given, 1000, took} }
	const ms = time.Millisecond
	for _, c := range []struct {
		name    string
		fetches []fetch
		later   time.Duration
		want    float64 // of the 2,048 tokens, milliseconds
		none    bool    // computing is quicker
	}{
		{name: "nothing measured", want: assumed},
		{name: "once", fetches: []fetch{measured(11 * ms)}, want: 1 + 20.48},
		{name: "the last ones count for most", fetches: []fetch{measured(11 * ms), measured(21 * ms)}, want: 1 + 2048*(0.8*10+20)/1800},
		{name: "long ones count for more", fetches: []fetch{{"p1", 1, given, 100, 51 * ms}, {"p1", 1, given, 10_000, 101 * ms}}, want: 1 + 2048*(0.8*50+100)/(80+10_000)},
		{name: "until it is old", fetches: []fetch{measured(11 * ms)}, later: time.Minute, want: 1 + 20.48},
		{name: "no longer", fetches: []fetch{measured(11 * ms)}, later: time.Minute + 1, want: assumed},
		{name: "too few tokens", fetches: []fetch{{"p1", 1, given, 63, 51 * ms}}, want: assumed},
		{name: "quicker than a round trip", fetches: []fetch{measured(ms)}, want: assumed},
		{name: "in vain", fetches: []fetch{{"p1", 1, workerv1.FetchVerdict_FETCH_VERDICT_STALE, 1000, 11 * ms}}, want: assumed},
		{name: "another worker", fetches: []fetch{{"p2", 1, given, 1000, 11 * ms}}, want: assumed},
		{name: "another incarnation", fetches: []fetch{{"p1", 2, given, 1000, 11 * ms}}, want: assumed},
		{name: "a worker that lies", fetches: []fetch{{"p1", 1, given, 64, math.MaxInt64}}, none: true},
		{name: "slower than computing", fetches: []fetch{measured(501 * ms)}, none: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, nil, store("s1"), prefill("p1"), decode("d1"))
			for _, f := range c.fetches {
				b.do(routing.Fetched{Store: routing.Ref{ID: "s1", Epoch: 1}, Worker: routing.Ref{ID: f.worker, Epoch: f.epoch}, Verdict: f.verdict, Tokens: f.tokens, Took: f.took})
			}
			b.now = b.now.Add(c.later)
			b.do(load("p1", controlv1.Role_ROLE_PREFILL, nil)) // a token takes 0.1 ms
			b.holds("s1", sequence(64)...)
			d, refusal, _ := b.arrive(b.prompt(tokens))
			if d.Source.GetBlocks() != 64 {
				t.Fatalf("not told of the store: %v, %v", d, refusal)
			}
			for _, p := range d.Decision.GetCandidates() {
				if p.GetWorkerId() != "p1" {
					continue
				}
				if (p.GetFetchTokens() == 0) != c.none {
					t.Errorf("%v: it fetches %d tokens", p, p.GetFetchTokens())
				}
				if rest := p.GetPrefillMs() - c.want; !c.none && (rest < lastTokenMs-0.01 || rest > lastTokenMs+0.01) {
					t.Errorf("fetching is predicted to take %v ms, want %v", p.GetPrefillMs()-lastTokenMs, c.want)
				}
			}
		})
	}
}
