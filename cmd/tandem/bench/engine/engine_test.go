package engine_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/benchtest"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func plan() engine.Plan {
	return engine.Plan{DType: cpu.BF16, KV: cpu.KVBF16, PromptTokens: 100, DecodeSteps: 5, Batch: 3, ContextTokens: 70, Rounds: 2}
}

func load(t *testing.T) *cpu.Weights {
	t.Helper()
	return benchtest.Tiny(t, cpu.BF16)
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-12*math.Abs(b) }

func TestMeasure(t *testing.T) {
	w := load(t)
	var done []int64
	p := plan()
	r, err := engine.Measure(t.Context(), w, p, func(now, total int64) { done = append(done, now, total) })
	if err != nil {
		t.Fatal(err)
	}
	if r.Plan != p || r.Model != "tiny" || r.Threads != 1 || r.ISA != w.ISA() || r.WeightBytes != w.Bytes() || r.ChunkTokens != cpu.DefaultMaxBatchTokens {
		t.Errorf("%+v", r)
	}
	if len(done) != 4 || done[0] != 1 || done[2] != 2 || done[3] != 2 {
		t.Errorf("progress %v", done)
	}
	for name, x := range map[string]float64{
		"prefill": r.Median.PrefillTokens, "decode": r.Median.DecodeTokens, "peak": r.Median.PeakGFLOPS, "read": r.Median.ReadGBytes,
		"barrier": r.BarrierNs, "shortest step": r.DecodeStepMs.Min, "of read": r.DecodeOfRead, "of best read": r.DecodeOfBestRead,
	} {
		if !(x > 0) || math.IsInf(x, 1) {
			t.Errorf("%s: %v", name, x)
		}
	}
	for name, pair := range map[string][2]float64{
		"prefill": {r.PrefillTokens, r.Median.PrefillTokens}, "decode": {r.DecodeTokens, r.Median.DecodeTokens},
		"peak": {r.PeakGFLOPS, r.Median.PeakGFLOPS}, "read": {r.ReadGBytes, r.Median.ReadGBytes}, "step": {r.DecodeStepMs.P50, r.DecodeStepMs.Min},
	} {
		if pair[0] < pair[1] {
			t.Errorf("%s: the best is %v, the median %v", name, pair[0], pair[1])
		}
	}
	if r.DecodePairs != p.Rounds*p.DecodeSteps {
		t.Errorf("%d pairs of %d steps in %d rounds", r.DecodePairs, p.DecodeSteps, p.Rounds)
	}
	if r.Valid != (r.Reason == "") {
		t.Errorf("valid %v: %q", r.Valid, r.Reason)
	}
}

// TestWindows: where the limits take their time, a window of decode has as many steps as
// there is time for.
func TestWindows(t *testing.T) {
	p := plan()
	p.Rounds, p.DecodeSteps, p.LimitsFor = 1, 100, 10*time.Millisecond
	r, err := engine.Measure(t.Context(), load(t), p, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.DecodePairs < 1 || r.DecodePairs > p.DecodeSteps || !(r.DecodeOfRead > 0) || math.IsInf(r.DecodeOfRead, 1) {
		t.Errorf("%v of reading in %d pairs", r.DecodeOfRead, r.DecodePairs)
	}
	if r.AllocsPerStep >= 1 { // none of the steps' own; the process has others, now and then
		t.Errorf("%v allocations a step", r.AllocsPerStep)
	}
	t.Logf("%d pairs", r.DecodePairs)
}

// TestNoContext: decode can begin at the first token.
func TestNoContext(t *testing.T) {
	p := plan()
	p.ContextTokens, p.PromptTokens, p.Rounds = 0, 1, 1
	if _, err := engine.Measure(t.Context(), load(t), p, nil); err != nil {
		t.Error(err)
	}
}

// TestContexts: each sequence has the context in blocks of its own, since memory that
// was never written is read faster.
func TestContexts(t *testing.T) {
	p := plan()
	e, err := load(t).NewEngine(p.Config())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	tables, err := engine.Prepare(t.Context(), e, p)
	if err != nil || len(tables) != p.Batch {
		t.Fatalf("%v, %v", tables, err)
	}
	seen := make(map[kvcache.BlockID]bool)
	for i, table := range tables {
		for b, block := range table {
			if seen[block] {
				t.Errorf("block %d is in two tables", block)
			}
			seen[block] = true
			whole := p.ContextTokens / e.Capacity().Layout.BlockTokens // decode writes the next
			for layer := range e.Model().Layers {
				slice := e.Pages().View(layer, block)
				if b < whole && (!bytes.Equal(slice, e.Pages().View(layer, tables[0][b])) || bytes.Count(slice, []byte{0}) > len(slice)/4) {
					t.Errorf("sequence %d, layer %d, block %d of it: not the context", i, layer, b)
				}
			}
		}
	}
}

func TestMeasureStops(t *testing.T) {
	w := load(t)
	ctx, cancel := context.WithCancel(t.Context())
	p := plan()
	p.Rounds = 1000
	if _, err := engine.Measure(ctx, w, p, func(int64, int64) { cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled after a round: %v", err)
	}
}

func TestFigures(t *testing.T) {
	// Linear weights of a layer: queries 8·8, keys and values 8·8, output 8·8, FFN 3·8·10.
	spec := model.Spec{HiddenSize: 8, Layers: 3, Heads: 2, KVHeads: 1, HeadSize: 4, FFNSize: 10, VocabSize: 100}
	const (
		qkv  = 8 * 16.0
		rest = 8*8.0 + 240
		look = 4 * 8.0
	)
	// 25 tokens in chunks of 10: only the last token of the last layer goes on after its
	// keys and values, and looks at 25 positions: half of 25² less 24².
	counted, computed := engine.PrefillFLOPs(spec, 25, 10)
	whole := 2*3*(qkv+rest)*25 + look*3*25*25/2 + 2*800
	short := 2*(3*qkv+2*rest)*25 + 2*rest + look*(2*25*25/2.0+24.5) + 2*800
	if !near(counted, whole) || !near(computed, short) {
		t.Errorf("%v and %v, want %v and %v", counted, computed, whole, short)
	}
	spec.LayerWindows = []int{0, 0, 4}
	counted, computed = engine.PrefillFLOPs(spec, 25, 25)
	whole = 2*3*(qkv+rest)*25 + look*(2*25*25/2.0+4*25) + 2*800
	short = 2*(3*qkv+2*rest)*25 + 2*rest + look*(2*25*25/2.0+4) + 2*800
	if !near(counted, whole) || !near(computed, short) {
		t.Errorf("with a window %v and %v, want %v and %v", counted, computed, whole, short)
	}
	spec.LayerWindows = nil
	// Two steps of two sequences: the weights and the head once each, KV of 11 and 12
	// positions.
	got := engine.DecodeBytes(spec, engine.Plan{DType: cpu.BF16, DecodeSteps: 2, Batch: 2, ContextTokens: 10})
	if want := 2*2*(3*(qkv+rest)+800) + 2*(11+12)*(2*4*3*2.0); !near(got, want) {
		t.Errorf("%v bytes, want %v", got, want)
	}
	// In int8 a weight is a byte, and a scale for every 128 of them.
	got = engine.DecodeBytes(spec, engine.Plan{DType: cpu.Int8, DecodeSteps: 2, Batch: 2, ContextTokens: 10})
	if want := 2*(1+4.0/128)*(3*(qkv+rest)+800) + 2*(11+12)*(2*4*3*2.0); !near(got, want) {
		t.Errorf("%v bytes in int8, want %v", got, want)
	}
	// In int4 half a byte, and a scale of two for every 32; the head is in int8.
	got = engine.DecodeBytes(spec, engine.Plan{DType: cpu.Int4, DecodeSteps: 2, Batch: 2, ContextTokens: 10})
	if want := 2*((1.0/2+2.0/32)*3*(qkv+rest)+(1+4.0/128)*800) + 2*(11+12)*(2*4*3*2.0); !near(got, want) {
		t.Errorf("%v bytes in int4, want %v", got, want)
	}
	// KV in int8: a byte an element, and two for each head of 4.
	got = engine.DecodeBytes(spec, engine.Plan{DType: cpu.BF16, KV: cpu.KVInt8, DecodeSteps: 2, Batch: 2, ContextTokens: 10})
	if want := 2*2*(3*(qkv+rest)+800) + 2*(11+12)*(2*(4+2)*3.0); !near(got, want) {
		t.Errorf("%v bytes with KV in int8, want %v", got, want)
	}
}

// TestWeightTypes: weights of another type are measured as they are.
func TestWeightTypes(t *testing.T) {
	for _, kind := range []cpu.WeightType{cpu.Int8, cpu.Int4} {
		p := plan()
		p.DType, p.Rounds = kind, 1
		w := benchtest.Tiny(t, kind)
		r, err := engine.Measure(t.Context(), w, p, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.DType != kind || r.WeightBytes != w.Bytes() || !near(r.DecodeStepBytes, engine.DecodeBytes(w.Spec(), p)/float64(p.DecodeSteps)) {
			t.Errorf("%+v", r)
		}
	}
}

func TestSum(t *testing.T) {
	r := &engine.Result{Plan: plan(), PrefillFLOPs: 4e9, PrefillFLOPsComputed: 3e9, DecodeStepBytes: 1e8}
	ms := func(each ...int) (all []time.Duration) {
		for _, n := range each {
			all = append(all, time.Duration(n)*time.Millisecond)
		}
		return all
	}
	engine.Sum(r, ms(200, 100, 400), [][]time.Duration{ms(20, 20, 20, 20, 20), ms(30, 30, 30, 30, 30), ms(10, 20, 30, 20, 45)}, [][]float64{
		{10e9, 10e9, 10e9, 10e9, 10e9, 10e9}, {3e9, 3e9, 3e9, 3e9, 3e9, 3e9}, {15e9, 10e9, 2e9, 6e9, 10e9, 2e9},
	}, []latency.Limits{
		{FLOPsPerSecond: 50e9, ReadBytesPerSecond: 10e9, Valid: true}, {FLOPsPerSecond: 48e9, ReadBytesPerSecond: 9.5e9, Valid: true},
		{FLOPsPerSecond: 49e9, ReadBytesPerSecond: 9.8e9, Valid: true}, {FLOPsPerSecond: 47e9, ReadBytesPerSecond: 9e9, Valid: true},
	})
	for name, pair := range map[string][2]float64{
		"prefill": {r.PrefillTokens, 1000}, "its median": {r.Median.PrefillTokens, 500}, "its spread": {r.Spread.PrefillTokens, 0.5},
		"decode": {r.DecodeTokens, 150}, "its median ": {r.Median.DecodeTokens, 120}, "its spread ": {r.Spread.DecodeTokens, 0.2},
		"peak": {r.PeakGFLOPS, 50}, "read": {r.ReadGBytes, 10}, "flops": {r.PrefillGFLOPS, 40}, "computed": {r.PrefillGFLOPSComputed, 30},
		"of peak": {r.PrefillOfPeak, 0.8}, "of peak computed": {r.PrefillOfPeakComputed, 0.6},
		"bytes": {r.DecodeGBytes, 5}, "of read": {r.DecodeOfRead, 0.8}, "pairs": {float64(r.DecodePairs), 15}, "of best read": {r.DecodeOfBestRead, 0.5}, "allocations": {r.AllocsPerStep, 2}, "bytes of them": {r.AllocBytesPerStep, 8},
		"shortest": {r.DecodeStepMs.Min, 10}, "middle": {r.DecodeStepMs.P50, 20},
	} {
		if !near(pair[0], pair[1]) {
			t.Errorf("%s: %v, want %v", name, pair[0], pair[1])
		}
	}
	if !r.Valid || r.Reason != "" {
		t.Errorf("valid %v: %s", r.Valid, r.Reason)
	}
}

// TestMiddleOfTwo: of an even number of pairs the median is between the two in the middle.
func TestMiddleOfTwo(t *testing.T) {
	r := &engine.Result{Plan: plan(), DecodeStepBytes: 1e8}
	quick := latency.Limits{FLOPsPerSecond: 1e9, ReadBytesPerSecond: 1e9, Valid: true}
	engine.Sum(r, []time.Duration{1}, [][]time.Duration{{20 * time.Millisecond, 10 * time.Millisecond}}, [][]float64{{10e9, 10e9, 30e9}}, []latency.Limits{quick, quick})
	if !near(r.DecodeOfRead, 0.5) || r.DecodePairs != 2 {
		t.Errorf("%v of %d pairs", r.DecodeOfRead, r.DecodePairs)
	}
	engine.Sum(r, []time.Duration{1}, [][]time.Duration{{20 * time.Millisecond, 10 * time.Millisecond}}, [][]float64{{10e9, 10e9, 10e9}}, []latency.Limits{quick, quick})
	if !near(r.DecodeOfRead, 0.75) {
		t.Errorf("%v of a half and a whole", r.DecodeOfRead)
	}
}

func TestWhichRunsAreValid(t *testing.T) {
	quick := latency.Limits{FLOPsPerSecond: 1000e9, ReadBytesPerSecond: 40e9, Valid: true}
	shared, slow, half := quick, quick, quick
	shared.Valid = false
	slow.ReadBytesPerSecond = 33e9
	half.FLOPsPerSecond = 890e9
	for _, c := range []struct {
		name    string
		isa     string
		threads int
		limits  [2]latency.Limits
		reason  string
	}{
		{"quiet", "avx512bf16", 2, [2]latency.Limits{quick, quick}, ""},
		{"others had processors", "avx2", 2, [2]latency.Limits{shared, quick}, "in 1 of 2 measurements of the limits"},
		{"reads apart", "avx2", 2, [2]latency.Limits{slow, quick}, "reads to 82% of the best"},
		{"slow all the time", "avx512bf16", 2, [2]latency.Limits{half, half}, "900 GFLOP/s"},
		{"slow memory all the time", "avx512bf16", 2, [2]latency.Limits{slow, slow}, "36 GB/s"},
		{"one core", "avx512bf16", 1, [2]latency.Limits{half, half}, ""},
		{"another processor", "avx512mixed", 2, [2]latency.Limits{slow, slow}, ""},
	} {
		r := &engine.Result{Plan: plan(), ISA: c.isa, Threads: c.threads}
		engine.Sum(r, []time.Duration{1}, [][]time.Duration{{1, 1, 1, 1, 1}}, [][]float64{{1, 1, 1, 1, 1, 1}}, c.limits[:])
		if r.Valid != (c.reason == "") || !strings.Contains(r.Reason, c.reason) {
			t.Errorf("%s: valid %v: %s", c.name, r.Valid, r.Reason)
		}
	}
}

func TestBytes(t *testing.T) {
	w := load(t)
	p := plan()
	one := p.Bytes(w.Spec())
	if one < w.Bytes() {
		t.Errorf("%d bytes with weights of %d", one, w.Bytes())
	}
	e, err := w.NewEngine(p.Config())
	if err != nil {
		t.Fatal(err)
	}
	capacity := e.Capacity()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	// A prompt of four blocks, three sequences of three.
	if capacity.Blocks != 4+3*3 {
		t.Errorf("%d blocks", capacity.Blocks)
	}
	p.ContextTokens += 320
	if more := p.Bytes(w.Spec()) - one; more != int64(3*10*capacity.Layout.PageBytes()) {
		t.Errorf("30 more blocks of %d bytes take %d", capacity.Layout.PageBytes(), more)
	}
}

func TestPlansThatAreRefused(t *testing.T) {
	w := load(t)
	for _, c := range []struct {
		want   string
		change func(*engine.Plan)
	}{
		{"--dtype: int8, but the weights are in bf16", func(p *engine.Plan) { p.DType = cpu.Int8 }},
		{"--kv: \"fp8\"", func(p *engine.Plan) { p.KV = "fp8" }},
		{"--dtype: \"fp8\"", func(p *engine.Plan) { p.DType = "fp8" }},
		{"--prompt: 0", func(p *engine.Plan) { p.PromptTokens = 0 }},
		{"--prompt: 513", func(p *engine.Plan) { p.PromptTokens = 513 }},
		{"--decode: 0", func(p *engine.Plan) { p.DecodeSteps = 0 }},
		{"--batch: 0", func(p *engine.Plan) { p.Batch = 0 }},
		{"--batch: 513", func(p *engine.Plan) { p.Batch = 513 }},
		{"--context: -1", func(p *engine.Plan) { p.ContextTokens = -1 }},
		{"--context and --decode: 508 and 5", func(p *engine.Plan) { p.ContextTokens = 508 }},
		{"--rounds: 0", func(p *engine.Plan) { p.Rounds = 0 }},
		{"--limits: 1h", func(p *engine.Plan) { p.LimitsFor = time.Hour }},
	} {
		p := plan()
		c.change(&p)
		if _, err := engine.Measure(t.Context(), w, p, nil); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}
