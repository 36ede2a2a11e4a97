package scaling_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scaling"
)

var began = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// every is the time between evaluations in these tests.
const every = 5 * time.Second

func config(prefill, decode scaling.Range) scaling.Config {
	c := scaling.DefaultConfig()
	c.Bounds = scaling.Bounds{Prefill: prefill, Decode: decode}
	return c
}

// worker is about an A100 with a model of 13 billion parameters.
func worker() scaling.Pool {
	return scaling.Pool{
		Workers: 1, Known: true, Step: latency.Model{BaseMs: 20, PerTokenMs: 0.1, PerContextTokenMs: 0.0006},
		StepTokens: 2048, Sequences: 64, KVTokens: 52000,
	}
}

func mesh() scaling.Mesh {
	return scaling.Mesh{Pools: scaling.Pools[scaling.Pool]{Prefill: worker(), Decode: worker()}}
}

// azure is a demand with the lengths of Azure's conversations.
func azure(rate float64) scaling.Demand {
	return scaling.Demand{
		RequestsPerSecond: rate, GapSCV: 1, PromptTokens: 1155, PromptSCV: 1, ContextTokens: 1155, OutputTokens: 211,
		TTFT: time.Second, TPOT: 100 * time.Millisecond,
	}
}

// drawnPool, drawnMesh and drawnDemand are anything that workers and requests can be, odd ones
// included.
func drawnPool(t *rapid.T, name string) scaling.Pool {
	ms := func(what string, most float64) float64 {
		return rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(0, most)).Draw(t, name+" "+what)
	}
	return scaling.Pool{
		Workers: rapid.IntRange(0, 50).Draw(t, name+" workers"), Known: rapid.Bool().Draw(t, name+" known"),
		Step:       latency.Model{BaseMs: ms("base", 100), PerTokenMs: ms("per token", 10), PerContextTokenMs: ms("per context", 0.1)},
		StepTokens: rapid.IntRange(0, 8192).Draw(t, name+" step tokens"),
		Sequences:  rapid.IntRange(0, 256).Draw(t, name+" sequences"), KVTokens: rapid.IntRange(0, 1<<20).Draw(t, name+" kv"),
	}
}

func drawnMesh(t *rapid.T) scaling.Mesh {
	return scaling.Mesh{Pools: scaling.Pools[scaling.Pool]{Prefill: drawnPool(t, "prefill"), Decode: drawnPool(t, "decode")}, PrefillOnly: rapid.Bool().Draw(t, "prefill only")}
}

func drawnDemand(t *rapid.T) scaling.Demand {
	tokens := rapid.Float64Range(0, 20000).Draw(t, "context")
	return scaling.Demand{
		RequestsPerSecond: rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(0, 1), rapid.Float64Range(0, 1e4)).Draw(t, "rate"),
		GapSCV:            rapid.Float64Range(0, 20).Draw(t, "gaps"),
		PromptTokens:      tokens * rapid.Float64Range(0, 1).Draw(t, "held"), PromptSCV: rapid.Float64Range(0, 10).Draw(t, "prompts"),
		ContextTokens: tokens, OutputTokens: rapid.Float64Range(0, 5000).Draw(t, "output"),
		TTFT:      time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "ttft")),
		TPOT:      time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "tpot")),
		TightTTFT: time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "tight ttft")),
		TightTPOT: time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "tight tpot")),
		Waiting:   rapid.Float64Range(0, 1000).Draw(t, "waiting"), WaitingTokens: rapid.Float64Range(0, 1e6).Draw(t, "waiting tokens"),
		Partial: rapid.Bool().Draw(t, "partial"),
	}
}

func drawnBounds(t *rapid.T) (prefill, decode scaling.Range) {
	draw := func(name string) scaling.Range {
		least := rapid.IntRange(0, 10).Draw(t, name+" min")
		return scaling.Range{Min: least, Max: least + rapid.IntRange(0, 200).Draw(t, name+" more")}
	}
	prefill, decode = draw("prefill"), draw("decode")
	if prefill.Max+decode.Max == 0 { // which Validate refuses
		decode.Max = 1
	}
	return prefill, decode
}

// Whatever happens, sizes are within their bounds, and there is a short reason.
func TestBoundsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prefill, decode := drawnBounds(t)
		s, now := scaling.New(config(prefill, decode)), began
		for range rapid.IntRange(1, 20).Draw(t, "evaluations") {
			now = now.Add(time.Duration(rapid.IntRange(0, 600).Draw(t, "seconds")) * time.Second)
			sizes := s.Evaluate(now, drawnDemand(t), drawnMesh(t))
			for _, of := range []struct {
				size   scaling.Size
				bounds scaling.Range
			}{{sizes.Prefill, prefill}, {sizes.Decode, decode}} {
				if of.size.Desired < of.bounds.Min || of.size.Desired > of.bounds.Max {
					t.Fatalf("%+v is outside %v", of.size, of.bounds)
				}
				if n := len(of.size.Reason); n == 0 || n > 200 || strings.Contains(of.size.Reason, "NaN") || strings.Contains(of.size.Reason, "Inf") {
					t.Fatalf("reason %q", of.size.Reason)
				}
			}
		}
	})
}

// first is what a new scaler wants of pools without workers.
func first(c scaling.Config, d scaling.Demand, m scaling.Mesh) scaling.Sizes {
	m.Prefill.Workers, m.Decode.Workers = 0, 0
	return scaling.New(c).Evaluate(began, d, m)
}

// More of the same requests never need fewer workers, in any pool.
func TestGrowsWithTheLoad(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prefill, decode := drawnBounds(t)
		c, d, m := config(prefill, decode), drawnDemand(t), drawnMesh(t)
		d.Waiting, d.WaitingTokens = 0, 0
		less := first(c, d, m)
		d.RequestsPerSecond *= rapid.Float64Range(1, 10).Draw(t, "times")
		more := first(c, d, m)
		if more.Prefill.Desired < less.Prefill.Desired || more.Decode.Desired < less.Decode.Desired {
			t.Fatalf("%v after %v", more, less)
		}
	})
}

// Under a steady load sizes change once at most, wherever they begin, and they are no less than what
// a new scaler would want.
func TestSteadyLoadDoesNotFlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prefill, decode := drawnBounds(t)
		c, d, m := config(prefill, decode), drawnDemand(t), drawnMesh(t)
		d.Partial = false
		s := scaling.New(c)
		size := s.Evaluate(began, d, m)
		changes := 0
		for i := range 200 {
			next := s.Evaluate(began.Add(time.Duration(i+1)*every), d, m)
			if next.Prefill.Desired != size.Prefill.Desired || next.Decode.Desired != size.Decode.Desired {
				changes++
			}
			size = next
		}
		if changes > 1 {
			t.Fatalf("%d changes", changes)
		}
		if want := first(c, d, m); (m.Prefill.Known || m.Decode.Known) && (size.Prefill.Desired < want.Prefill.Desired || size.Decode.Desired < want.Decode.Desired) {
			t.Fatalf("%v, which is less than %v", size, want)
		}
	})
}

// A load that goes up and down by a twentieth does not have sizes go up and down.
func TestNoiseDoesNotFlap(t *testing.T) {
	s, changes := scaling.New(config(scaling.Range{Min: 1, Max: 100}, scaling.Range{Min: 1, Max: 100})), 0
	var last scaling.Sizes
	for i := range 1000 {
		rate := 20 * (1 + 0.05*math.Sin(float64(i)))
		size := s.Evaluate(began.Add(time.Duration(i)*every), azure(rate), mesh())
		if i > 70 && (size.Prefill.Desired != last.Prefill.Desired || size.Decode.Desired != last.Decode.Desired) {
			changes++
		}
		last = size
	}
	if changes > 0 {
		t.Errorf("%d changes", changes)
	}
}

// A load that grows has its workers wanted with the first evaluation that knows of it, and one that
// shrinks has them go once fewer were enough for as long as the configuration says, not before.
func TestReacts(t *testing.T) {
	c := config(scaling.Range{Min: 1, Max: 100}, scaling.Range{Min: 1, Max: 100})
	rapid.Check(t, func(t *rapid.T) {
		low := rapid.Float64Range(0, 20).Draw(t, "low")
		high := low + rapid.Float64Range(0, 100).Draw(t, "more")
		s, now := scaling.New(c), began
		step := func(rate float64) scaling.Sizes {
			now = now.Add(every)
			return s.Evaluate(now, azure(rate), mesh())
		}
		for range 100 {
			step(low)
		}
		got, want := step(high), first(c, azure(high), mesh())
		if got.Prefill.Desired < want.Prefill.Desired || got.Decode.Desired < want.Decode.Desired {
			t.Fatalf("from %v to %v requests a second: %v, want %v", low, high, got, want)
		}
		held := got
		for range int(c.DownAfter/every) - 1 {
			got = step(low)
			if got.Prefill.Desired < held.Prefill.Desired || got.Decode.Desired < held.Decode.Desired {
				t.Fatalf("%v so soon after %v", got, held)
			}
		}
		for range 3 {
			got = step(low)
		}
		if most := first(c, azure(1.1*low), mesh()); got.Prefill.Desired > most.Prefill.Desired || got.Decode.Desired > most.Decode.Desired {
			t.Fatalf("back at %v requests a second: %v, want at most %v", low, got, most)
		}
	})
}

// Sizes where one can say what is right.
func TestSizes(t *testing.T) {
	wide := config(scaling.Range{Min: 1, Max: 100}, scaling.Range{Min: 1, Max: 100})
	zero := config(scaling.Range{Min: 0, Max: 100}, scaling.Range{Min: 0, Max: 100})
	unknown := mesh()
	unknown.Prefill.Known, unknown.Decode.Known = false, false
	prefillOnly := mesh()
	prefillOnly.PrefillOnly = true
	impossible := azure(10)
	impossible.TTFT, impossible.TPOT = 10*time.Millisecond, 100*time.Millisecond
	slow := azure(10)
	slow.TPOT = 5 * time.Millisecond
	fractions := azure(10)
	fractions.TPOT = 30*time.Millisecond - time.Microsecond
	whole := azure(10)
	whole.TPOT = 30 * time.Millisecond
	if got, want := first(wide, fractions, prefillOnly).Decode.Desired, first(wide, whole, prefillOnly).Decode.Desired; got != want {
		t.Errorf("%d decode workers for a TPOT of 29.999ms, %d for 30ms", got, want)
	}
	fixed := mesh() // steps take as long whatever they compute
	for _, p := range []*scaling.Pool{&fixed.Prefill, &fixed.Decode} {
		p.Step = latency.Model{BaseMs: 5}
	}
	waits := azure(0)
	waits.Waiting, waits.WaitingTokens = 300, 300*1155
	for _, test := range []struct {
		name            string
		config          scaling.Config
		demand          scaling.Demand
		mesh            scaling.Mesh
		prefill, decode [2]int // least and most
		says            string
	}{
		{"nothing comes", wide, scaling.Demand{}, mesh(), [2]int{1, 1}, [2]int{1, 1}, "no requests come"},
		{"nothing comes, and none need stay", zero, scaling.Demand{}, mesh(), [2]int{0, 0}, [2]int{0, 0}, "no requests come"},
		{"a request now and then", zero, azure(0.01), mesh(), [2]int{0, 1}, [2]int{0, 1}, "requests/s"},
		{"nobody has measured", zero, azure(5), unknown, [2]int{0, 0}, [2]int{1, 1}, "no worker has measured its steps"},
		// A prompt takes about 0.14 s of a worker, and an answer about 0.28 s: 4.2 workers, 5 at
		// 85%, and one to spare.
		{"10 a second", wide, azure(10), mesh(), [2]int{2, 2}, [2]int{3, 4}, "to spare"},
		{"10 a second, prefill only", wide, azure(10), prefillOnly, [2]int{3, 3}, [2]int{5, 5}, "to spare"},
		{"no number is enough for the first token", wide, impossible, mesh(), [2]int{2, 2}, [2]int{3, 4}, "no number computes a prompt within 10ms"},
		{"nor for the others", wide, slow, mesh(), [2]int{1, 100}, [2]int{1, 100}, "no number has a token within 5ms"},
		{"fixed steps", wide, azure(10), fixed, [2]int{1, 2}, [2]int{1, 2}, "need 1 in all"},
		{"a queue without arrivals", wide, waits, mesh(), [2]int{2, 2}, [2]int{3, 4}, "10 requests/s"},
	} {
		got := first(test.config, scaling.Sum(test.demand), test.mesh)
		if n := got.Prefill.Desired; n < test.prefill[0] || n > test.prefill[1] {
			t.Errorf("%s: %d prefill workers, want %v", test.name, n, test.prefill)
		}
		if n := got.Decode.Desired; n < test.decode[0] || n > test.decode[1] {
			t.Errorf("%s: %d decode workers, want %v", test.name, n, test.decode)
		}
		if !strings.Contains(got.Decode.Reason, test.says) {
			t.Errorf("%s: %q does not say %q", test.name, got.Decode.Reason, test.says)
		}
	}
}

// TestTight: of requests that want different things, the tight ones are provided for if they are a
// tenth, or as many as can be: where no number of workers is enough for them, the mean counts.
func TestTight(t *testing.T) {
	wide := config(scaling.Range{Min: 1, Max: 100}, scaling.Range{Min: 1, Max: 100})
	all := azure(10) // interactive
	all.TTFT, all.TPOT = 500*time.Millisecond, 30*time.Millisecond
	mixed := azure(10)
	mixed.TTFT, mixed.TPOT = 8100*time.Millisecond, 406*time.Millisecond
	loose := first(wide, mixed, mesh())
	mixed.TightTTFT, mixed.TightTPOT = all.TTFT, all.TPOT
	got, want := first(wide, scaling.Sum(mixed), mesh()), first(wide, all, mesh())
	if got.Prefill.Desired != want.Prefill.Desired || got.Decode.Desired != want.Decode.Desired || got == loose {
		t.Errorf("%+v, want %+v", got, want)
	}
	mixed.TightTTFT, mixed.TightTPOT = 10*time.Millisecond, 5*time.Millisecond
	got = first(wide, mixed, mesh())
	if got.Prefill.Desired != loose.Prefill.Desired || got.Decode.Desired != loose.Decode.Desired || !strings.Contains(got.Decode.Reason, "within 10ms") {
		t.Errorf("%+v, want %+v", got, loose)
	}
}

func TestTightest(t *testing.T) {
	for _, c := range []struct {
		name   string
		wanted []scaling.Wanted
		want   time.Duration
	}{
		{"nobody", nil, 0},
		{"without a weight", []scaling.Wanted{{time.Second, 0}}, 0},
		{"one", []scaling.Wanted{{time.Second, 3}}, time.Second},
		{"a tenth", []scaling.Wanted{{2, 9}, {1, 1}}, 1},
		{"less than a tenth", []scaling.Wanted{{2, 9.1}, {1, 1}}, 2},
		{"a tenth together", []scaling.Wanted{{4, 90}, {1, 5}, {2, 4}, {3, 1}}, 3},
		{"most want none", []scaling.Wanted{{0, 9}, {1, 1}}, 1},
		{"almost all want none", []scaling.Wanted{{0, 9.1}, {1, 1}}, 0},
	} {
		if got := scaling.Tightest(c.wanted); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// The loss of one worker leaves the others enough time, wherever there are several.
func TestOneMayFail(t *testing.T) {
	c := config(scaling.Range{Min: 0, Max: 1000}, scaling.Range{Min: 0, Max: 1000})
	for rate := 0.5; rate < 200; rate *= 1.1 {
		got := first(c, azure(rate), mesh())
		total := got.Prefill.Desired + got.Decode.Desired
		if total > 1 {
			total--
		}
		// What one worker does at most: prompts and answers by their times alone.
		each := (1155*(0.1+0.0006) + 20*1155.0/2048) / 1000
		answer := 211 * (20 + 38*(0.1+0.0006*(1155+105))) / 38 / 1000
		if use := rate * (each + answer) / float64(total); use > 1 {
			t.Errorf("%v requests a second on %d workers after a loss: %.2f of their time", rate, total, use)
		}
	}
}

// What several routers get adds up, and their averages count by what each gets.
func TestSum(t *testing.T) {
	a, b := azure(30), azure(10)
	b.PromptTokens, b.TTFT, b.TPOT = 155, 0, 20*time.Millisecond
	sum := scaling.Sum(a, scaling.Demand{}, b)
	if sum.RequestsPerSecond != 40 || math.Abs(sum.PromptTokens-905) > 1e-9 || sum.TTFT != time.Second || sum.TPOT != 80*time.Millisecond || sum.GapSCV != 1 {
		t.Errorf("%+v", sum)
	}
	c := azure(0) // all of it waits
	c.Waiting, c.PromptTokens, c.TTFT = 300, 155, 2*time.Second
	if sum := scaling.Sum(azure(10), c); sum.RequestsPerSecond != 10 || math.Abs(sum.PromptTokens-655) > 1e-9 || sum.TTFT != 1500*time.Millisecond {
		t.Errorf("with requests that wait: %+v", sum)
	}
	if empty := scaling.Sum(); empty != (scaling.Demand{}) {
		t.Errorf("nothing sums to %+v", empty)
	}
}

func TestBoundsFlag(t *testing.T) {
	b := scaling.Bounds{Prefill: scaling.Range{Min: 1, Max: 2}, Decode: scaling.Range{Min: 1, Max: 2}}
	if err := b.Set("decode=2..5"); err != nil || b.String() != "prefill=1..2,decode=2..5" {
		t.Errorf("%v, %s", err, b.String())
	}
	if err := b.Set("prefill=3, decode=0..1"); err != nil || b.String() != "prefill=3..3,decode=0..1" {
		t.Errorf("%v, %s", err, b.String())
	}
	if err := b.Set(""); err != nil || b.String() != "" {
		t.Errorf("%v, %s", err, b.String())
	}
	for _, bad := range []string{"prefill", "prefill=", "prefill=4..1", "prefill=-1..2", "router=1..2", "decode=1..99999", "decode=1...2"} {
		if err := b.Set(bad); err == nil || !strings.Contains(err.Error(), "prefill=1..4,decode=1..4") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if err := (scaling.Bounds{}).Validate(); err == nil {
		t.Error("no pool may have workers, and nobody says so")
	}
}
