package stats_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/loadtest/stats"
)

// Every figure is within 0.1% plus half a microsecond of the sample's.
func TestHistogramQuantiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		durations := rapid.SliceOfN(rapid.Int64Range(0, int64(10*time.Minute)), 1, 300).Draw(t, "durations")
		h := stats.NewHistogram()
		var sum float64
		for _, d := range durations {
			h.Record(time.Duration(d))
			sum += float64(d)
		}
		slices.Sort(durations)
		near := func(what string, got, want time.Duration) {
			if slack := want/1000 + time.Microsecond; got < want-slack || got > want+slack {
				t.Fatalf("%s %v, want %v", what, got, want)
			}
		}
		for k, want := range durations {
			near("rank", h.AtRank(int64(k+1)), time.Duration(want))
		}
		near("max", h.Max(), time.Duration(durations[len(durations)-1]))
		near("median", h.Quantile(0.5), time.Duration(durations[(len(durations)-1)/2]))
		near("mean", h.Mean(), time.Duration(sum/float64(len(durations))))

		text, err := h.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := stats.DecodeHistogram(text)
		if err != nil {
			t.Fatal(err)
		}
		if again.Count() != h.Count() {
			t.Fatalf("%d of %d came back", again.Count(), h.Count())
		}
		for _, q := range []float64{0, 0.1, 0.5, 0.99, 1} {
			near("decoded", again.Quantile(q), h.Quantile(q))
		}
	})
}

func TestHistogramMerge(t *testing.T) {
	a, b, both := stats.NewHistogram(), stats.NewHistogram(), stats.NewHistogram()
	for i := range 1000 {
		d := time.Duration(i*i) * time.Microsecond
		both.Record(d)
		if i%3 == 0 {
			a.Record(d)
		} else {
			b.Record(d)
		}
	}
	a.Merge(b)
	if a.Count() != both.Count() || a.Mean() != both.Mean() || a.Max() != both.Max() || a.Quantile(0.9) != both.Quantile(0.9) {
		t.Errorf("merged %d %v %v, want %d %v %v", a.Count(), a.Mean(), a.Max(), both.Count(), both.Mean(), both.Max())
	}
}

func TestHistogramTakesWhatCannotBe(t *testing.T) {
	h := stats.NewHistogram()
	if h.Quantile(0.5) != 0 || h.Mean() != 0 || h.AtRank(1) != 0 {
		t.Error("an empty histogram has figures")
	}
	h.Record(-time.Second)
	h.Record(1000 * time.Hour)
	h.RecordN(time.Second, -1)
	if h.Count() != 2 || h.Max() != time.Hour || h.AtRank(1) != 0 {
		t.Errorf("%d, longest %v, shortest %v", h.Count(), h.Max(), h.AtRank(1))
	}
}

func FuzzDecodeHistogram(f *testing.F) {
	h := stats.NewHistogram()
	h.Record(time.Second)
	text, err := h.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add("")
	f.Add("HISTFAAAAB542pNpmSzMwMDAxAABzFCaEUoz2X+AMAAIAANHAu4=")
	f.Fuzz(func(t *testing.T, text string) {
		h, err := stats.DecodeHistogram(text)
		if err != nil {
			return
		}
		if q := h.Quantile(0.99); q < 0 || q > 2*time.Hour || h.Mean() < 0 {
			t.Fatalf("p99 %v, mean %v", q, h.Mean())
		}
	})
}
