package offload_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/offload"
)

func anyCost(t *rapid.T) offload.FetchCost {
	return offload.FetchCost{
		Model: latency.Model{
			BaseMs:            rapid.Float64Range(0, 20).Draw(t, "base ms"),
			PerTokenMs:        rapid.Float64Range(0, 2).Draw(t, "ms a token"),
			PerContextTokenMs: rapid.Float64Range(0, 0.01).Draw(t, "ms a token of context"),
			Samples:           rapid.Uint64Range(0, 3).Draw(t, "samples"),
		},
		BytesPerSecond: rapid.SampledFrom([]float64{0, 1, 1e6, 1e8, 1e9, 1e11}).Draw(t, "bytes a second"),
		PageBytes:      rapid.IntRange(1, 4<<20).Draw(t, "page"),
		BlockTokens:    rapid.SampledFrom([]int{1, 16, 32, 256}).Draw(t, "block"),
		ChunkTokens:    256 * rapid.IntRange(1, 8).Draw(t, "chunk"),
	}
}

// TestFetchOnlyIfComputingTakesLonger: and never wait much longer than computing
// takes; faster stores are never worth less.
func TestFetchOnlyIfComputingTakesLonger(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyCost(t)
		until := rapid.IntRange(0, 100).Draw(t, "until")
		from := rapid.IntRange(0, 100).Draw(t, "from")
		prompt := until*c.BlockTokens + rapid.IntRange(1, 2*c.BlockTokens).Draw(t, "rest")
		saved, fetch, limit, worth := c.Worth(prompt, from, until)
		switch {
		case worth && (until <= from || c.Model.Samples == 0 || c.BytesPerSecond <= 0):
			t.Fatal("fetches what is here, or knows nothing")
		case worth && (saved <= fetch || limit < saved || limit > saved*6/5):
			t.Fatalf("fetches for %v, at most %v, what takes %v to compute", fetch, limit, saved)
		case !worth && from < until && c.Model.Samples > 0 && c.BytesPerSecond > 0 && saved > fetch*3/2:
			t.Fatalf("computes for %v what takes %v to fetch", saved, fetch)
		}
		if worth {
			c.BytesPerSecond *= 2
			if _, _, _, still := c.Worth(prompt, from, until); !still {
				t.Fatal("a store twice as fast is not worth it")
			}
		}
	})
}

func TestFetchCost(t *testing.T) {
	// 1 ms a token, chunks of 512; a page takes 1 ms at 1 MB/s.
	c := offload.FetchCost{
		Model: latency.Model{BaseMs: 5, PerTokenMs: 1, Samples: 9}, BytesPerSecond: 1e6, PageBytes: 1000, BlockTokens: 32, ChunkTokens: 512,
	}
	for _, test := range []struct {
		prompt, from, until int
		saved, fetch        time.Duration
	}{
		{100, 0, 3, 96 * time.Millisecond, 4 * time.Millisecond},
		{1000, 0, 31, 997 * time.Millisecond, 32 * time.Millisecond}, // a step less, too
		{1000, 15, 16, 37 * time.Millisecond, 2 * time.Millisecond},
		{1000, 16, 17, 32 * time.Millisecond, 2 * time.Millisecond},
		{1000, 17, 17, 0, time.Millisecond},
	} {
		if saved, fetch, _, _ := c.Worth(test.prompt, test.from, test.until); saved != test.saved || fetch != test.fetch {
			t.Errorf("%+v: saves %v for %v", test, saved, fetch)
		}
	}
}

func TestSpeedsAreMeasured(t *testing.T) {
	const mb, second = 1 << 20, time.Second + time.Millisecond // that is not bandwidth's
	s := offload.NewSpeeds(1000)
	now := time.Unix(1000, 0)
	check := func(what string, want float64) {
		t.Helper()
		if got := s.BytesPerSecond("a", now); got < want*0.999 || got > want*1.001 {
			t.Errorf("%s: %v bytes a second, want %v", what, got, want)
		}
	}
	check("nothing is known", 1000)
	s.Fetched("a", mb-1, second, now)
	check("too little to tell", 1000)
	s.Fetched("a", 5*mb, second, now)
	check("measured once", 5*mb)
	s.Fetched("a", mb, second, now)
	check("measured twice", (0.8*5+1)/1.8*mb)
	if s.BytesPerSecond("b", now) != 1000 {
		t.Error("another store is as fast as the first")
	}
	s.TooSlow("a", mb, 10*time.Second+time.Millisecond, now)
	check("given up", (0.8*(0.8*5+1)+1)/(0.8*1.8+10)*mb)
	now = now.Add(2 * time.Minute)
	check("long ago", 1000)
	s.Fetched("a", 7*mb, second, now)
	check("measured again", 7*mb)
}

func TestStoresThatFailRest(t *testing.T) {
	s := offload.NewSpeeds(1000)
	now := time.Unix(1000, 0)
	rests := func(id string) (fetches, puts time.Duration) {
		f, p := s.Rests(id)
		return max(f.Sub(now), 0), max(p.Sub(now), 0)
	}
	broken := offload.Outcome{Err: errors.New("broken"), State: offload.Failing}
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30, 30} {
		s.FetchEnded("a", broken, now)
		if fetches, puts := rests("a"); fetches != want*time.Second || puts != 0 {
			t.Errorf("failure %d: rests for %v from fetches, %v from puts, want %v and 0", i, fetches, puts, want*time.Second)
		}
	}
	s.PutEnded("a", broken, now)
	if fetches, puts := rests("a"); fetches != 30*time.Second || puts != time.Second {
		t.Errorf("rests for %v from fetches, %v from puts", fetches, puts)
	}
	s.Fetched("a", 1, time.Second, now)
	if fetches, puts := rests("a"); fetches != 0 || puts != time.Second {
		t.Errorf("it gave blocks and rests for %v from fetches, %v from puts", fetches, puts)
	}
	s.PutEnded("a", offload.Outcome{Err: errors.New("it has them")}, now)
	if _, puts := rests("a"); puts != 0 {
		t.Error("it rests though it answered as it should")
	}
	for i := range 1000 {
		s.FetchEnded(fmt.Sprint(i), broken, now.Add(time.Duration(i)))
	}
	if s.Known() > 64 {
		t.Errorf("%d stores are remembered", s.Known())
	}
}

// TestPrefixesStayOnTheirStore: when a store goes, only what was on it moves.
func TestPrefixesStayOnTheirStore(t *testing.T) {
	ids := []string{"store-1", "store-2", "store-3", "store-4"}
	on := map[string]int{}
	for i := range 4000 {
		first := kvcache.Hash(i)
		was := offload.Choose(ids, first)
		on[was]++
		if is := offload.Choose(ids[:3], first); is != was && was != ids[3] {
			t.Fatalf("block %d moved from %s to %s", i, was, is)
		}
	}
	for _, id := range ids {
		if on[id] < 800 || on[id] > 1200 {
			t.Errorf("%d of 4000 prefixes are on %s", on[id], id)
		}
	}
}
