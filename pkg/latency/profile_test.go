package latency_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/latency"
)

func profile() *latency.Profile {
	return &latency.Profile{
		Version: 1, Model: "toy", Jitter: 0.05,
		Prefill: []latency.Regime{{Terms: latency.Terms{BaseMs: 10, PerTokenMs: 0.5, PerSquareMs: 0.001, PerSampleMs: 1}}},
		Decode: []latency.Regime{
			{UpTo: 8, Terms: latency.Terms{BaseMs: 8, PerTokenMs: 0.25, PerContextTokenMs: 0.01}},
			{Terms: latency.Terms{BaseMs: 2, PerTokenMs: 1}},
		},
		Limits: &latency.Limits{FLOPsPerSecond: 1e12, ReadBytesPerSecond: 4e10, Valid: true},
	}
}

func TestPredict(t *testing.T) {
	p := profile()
	type sequence struct {
		start, tokens int
		sampled       bool
	}
	for _, c := range []struct {
		name      string
		sequences []sequence
		ms        float64
	}{
		{"nothing", nil, 0},
		{"a whole prompt", []sequence{{0, 100, true}}, 10 + 50 + 10 + 1},
		{"its second half", []sequence{{50, 50, false}}, 10 + 25 + 7.5},
		{"two prompts", []sequence{{0, 100, true}, {0, 100, true}}, 10 + 100 + 20 + 2},
		{"a prompt of one token", []sequence{{0, 1, false}}, 10 + 0.5 + 0.001},
		{"one token", []sequence{{99, 1, true}}, 8 + 0.25 + 1},
		{"a batch at the end of its regime", []sequence{{9, 1, true}, {9, 1, true}, {9, 1, true}, {9, 1, true}, {9, 1, true}, {9, 1, true}, {9, 1, true}, {9, 1, true}}, 8 + 2 + 0.8},
		{"one more", []sequence{{9, 1, true}, {9, 1, true}, {9, 1, true}, {9, 1, true}, {9, 1, true}, {9, 1, true}, {9, 1, true}, {9, 1, true}, {9, 1, true}}, 2 + 9},
		{"mixed: a long prompt hides the reading of the weights", []sequence{{0, 100, false}, {99, 1, true}}, 10 + 50 + 10 + 0.25 + 1},
		{"mixed: a prompt of one token, two single tokens", []sequence{{0, 1, false}, {9, 1, true}, {9, 1, true}}, 10.501 + 0.5 + 0.2},
	} {
		t.Run(c.name, func(t *testing.T) {
			var w latency.StepWork
			for _, s := range c.sequences {
				w.Add(s.start, s.tokens, s.sampled)
			}
			want := time.Duration(math.Round(c.ms * 1e6))
			if got := p.Predict(w); (got - want).Abs() > time.Microsecond {
				t.Errorf("%v, want %v", got, want)
			}
			if w.Empty() != (c.name == "nothing") {
				t.Errorf("Empty is %v", w.Empty())
			}
		})
	}
}

// TestShortPromptBesideDecode: while the weights are read, a short prompt is free.
func TestShortPromptBesideDecode(t *testing.T) {
	terms := func(base, token float64) []latency.Regime {
		return []latency.Regime{{Terms: latency.Terms{BaseMs: base, PerTokenMs: token}}}
	}
	p := &latency.Profile{Version: latency.ProfileVersion, Prefill: terms(1, 0.1), Decode: terms(8, 0.5)}
	for tokens, want := range map[int]time.Duration{10: 9 * time.Millisecond, 70: 9 * time.Millisecond, 100: 12 * time.Millisecond} {
		var w latency.StepWork
		w.Add(0, tokens, false)
		w.Add(9, 1, true)
		w.Add(9, 1, true)
		if got := p.Predict(w); got != want {
			t.Errorf("%d tokens: %v, want %v", tokens, got, want)
		}
	}
}

// TestVerify: steps with drafts have terms of their own, also beside prompts. Without those they
// take the time of as many single tokens.
func TestVerify(t *testing.T) {
	terms := func(base, perToken float64) []latency.Regime {
		return []latency.Regime{{Terms: latency.Terms{BaseMs: base, PerTokenMs: perToken}}}
	}
	p := &latency.Profile{Version: latency.ProfileVersion, Prefill: terms(1, 0.1), Decode: terms(8, 0.5), Verify: terms(9, 0.25)}
	var drafts, plain, mixed latency.StepWork
	drafts.AddDrafts(10, 3)
	drafts.Add(10, 1, true)
	plain.Add(10, 1, true)
	mixed.Add(0, 100, false)
	mixed.AddDrafts(10, 3)
	check := func(want ...float64) {
		t.Helper()
		for i, w := range []latency.StepWork{drafts, plain, mixed} {
			if got := p.Predict(w).Seconds() * 1e3; math.Abs(got-want[i]) > 1e-6 {
				t.Errorf("step %d takes %v ms, want %v", i, got, want[i])
			}
		}
	}
	check(9+5*0.25, 8+0.5, 11+4*0.25)
	p.Verify = nil
	check(8+5*0.5, 8+0.5, 11+4*0.5)
	p.Verify = terms(-1, 0)
	if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "verify[0].base_ms") {
		t.Errorf("error %v", err)
	}
}

// TestMixed: where it was measured what single tokens add, that counts; they are never
// faster than without the prompt.
func TestMixed(t *testing.T) {
	terms := func(base, token float64) []latency.Regime {
		return []latency.Regime{{Terms: latency.Terms{BaseMs: base, PerTokenMs: token}}}
	}
	p := &latency.Profile{Version: latency.ProfileVersion, Prefill: terms(1, 0.1), Decode: terms(8, 0.5), Mixed: terms(2, 0.25)}
	for tokens, want := range map[int]time.Duration{10: 9 * time.Millisecond, 100: 13500 * time.Microsecond} {
		var w latency.StepWork
		w.Add(0, tokens, false)
		w.Add(9, 1, true)
		w.Add(9, 1, true)
		if got := p.Predict(w); got != want {
			t.Errorf("%d tokens: %v, want %v", tokens, got, want)
		}
	}
	p.Mixed[0].PerTokenMs = -1
	if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "mixed[0].per_token_ms") {
		t.Errorf("%v", err)
	}
}

// TestChunksAddUp: however a prompt is cut, what depends on its work is the same.
func TestChunksAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.IntRange(1, 5000).Draw(t, "length")
		var whole, parts latency.StepWork
		whole.Add(0, length, true)
		for at := 0; at < length; {
			n := rapid.IntRange(1, length-at).Draw(t, "chunk")
			parts.Add(at, n, at+n == length)
			at += n
		}
		tokens := parts.Prefill.Tokens + parts.Decode.Tokens
		squares := parts.Prefill.Squares + parts.Decode.Squares
		if tokens != length || squares != whole.Prefill.Squares+whole.Decode.Squares || parts.Prefill.Samples+parts.Decode.Samples != 1 {
			t.Fatalf("parts %+v of %+v", parts, whole)
		}
	})
}

func TestModelAsProfile(t *testing.T) {
	m := latency.Model{BaseMs: 3, PerTokenMs: 0.5, PerContextTokenMs: 0.25, PerSquareMs: 0.125}
	var w latency.StepWork
	w.Add(0, 20, true)
	w.Add(9, 1, true)
	if got, want := m.Profile().Predict(w), m.Predict(w); got != want {
		t.Errorf("%v, the model says %v", got, want)
	}
}

func TestProfileFile(t *testing.T) {
	p := profile()
	p.Errors = map[string]latency.FitError{"decode": {Points: 3, Median: 0.01, P90: 0.02, Max: 0.03}}
	p.Layers = map[string]latency.LayerTimes{"decode": {Tokens: 1, Context: 9, LayersMs: []float64{2, 3}, HeadMs: 4}}
	var file bytes.Buffer
	if err := p.Write(&file); err != nil {
		t.Fatal(err)
	}
	got, err := latency.ReadProfile(&file)
	if err != nil || !reflect.DeepEqual(got, p) {
		t.Errorf("read %+v, %v; wrote %+v", got, err, p)
	}
}

func TestReadProfileRefuses(t *testing.T) {
	const decode = `"decode":[{"base_ms":1,"per_token_ms":1}]`
	for _, c := range []struct{ name, file, says string }{
		{"empty", "", "empty"},
		{"cut", `{"version":1,`, "truncated"},
		{"an array", `[]`, "unexpected array in place of an object"},
		{"text for a number", `{"version":"1"}`, "version: unexpected string"},
		{"no JSON", "hello", "byte 1"},
		{"two values", `{"version":1,"prefill":[{"base_ms":1,"per_token_ms":1}],` + decode + `} {}`, "data after the end"},
		{"unknown key", `{"version":1,"prefil":[]}`, `"prefil"`},
		{"another version", `{"version":2}`, "version 2"},
		{"no prefill", `{"version":1,` + decode + `}`, "prefill: 0 regimes"},
		{"negative", `{"version":1,"prefill":[{"base_ms":-1,"per_token_ms":1}],` + decode + `}`, "prefill[0].base_ms: -1"},
		{"too slow", `{"version":1,"prefill":[{"base_ms":1,"per_token_ms":1e7}],` + decode + `}`, "per_token_ms"},
		{"no time at all", `{"version":1,"prefill":[{"base_ms":0,"per_token_ms":0}],` + decode + `}`, "all terms are 0"},
		{"out of order", `{"version":1,"prefill":[{"up_to":8,"base_ms":1,"per_token_ms":1},{"up_to":4,"base_ms":1,"per_token_ms":1}],` + decode + `}`, "prefill[1].up_to: 4"},
		{"endless in the middle", `{"version":1,"prefill":[{"base_ms":1,"per_token_ms":1},{"base_ms":1,"per_token_ms":1}],` + decode + `}`, "prefill[0].up_to: 0"},
		{"jitter", `{"version":1,"jitter":3,"prefill":[{"base_ms":1,"per_token_ms":1}],` + decode + `}`, "jitter"},
		{"limits", `{"version":1,"limits":{"flops_per_second":-1,"read_bytes_per_second":1,"valid":true},"prefill":[{"base_ms":1,"per_token_ms":1}],` + decode + `}`, "limits"},
		{"too large", strings.Repeat(" ", 5<<20), "larger than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := latency.ReadProfile(strings.NewReader(c.file)); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, which should speak of %q", err, c.says)
			}
		})
	}
}

// FuzzReadProfile: what is read gives every step a time that is not negative.
func FuzzReadProfile(f *testing.F) {
	var file bytes.Buffer
	if err := profile().Write(&file); err != nil {
		f.Fatal(err)
	}
	f.Add(file.Bytes(), 3, 5)
	f.Add([]byte(`{"version":1,"prefill":[{"per_square_ms":1e6}],"decode":[{"up_to":1,"base_ms":1}]}`), 1<<20, 1<<20)
	f.Fuzz(func(t *testing.T, data []byte, start, tokens int) {
		p, err := latency.ReadProfile(bytes.NewReader(data))
		if err != nil {
			return
		}
		if start < 0 || tokens < 1 || start > 1<<30 || tokens > 1<<30 {
			return
		}
		var w latency.StepWork
		w.Add(start, tokens, true)
		if d := p.Predict(w); d < 0 {
			t.Fatalf("a step of %v", d)
		}
	})
}

const distServe = `{"opt-13b":{"1":{"decoding_large_small_bs_threshold":95,"prefill":[18,0.1,7e-6],"decoding_smallbs":[20,6e-4,0.04],"decoding_largebs":[7,5e-4,0.16]},
	"2":{"decoding_large_small_bs_threshold":95,"prefill":[18,0.1],"decoding_smallbs":[20,6e-4,0.04],"decoding_largebs":[7,5e-4,0.16]}}}`

func TestReadDistServe(t *testing.T) {
	p, err := latency.ReadDistServe(strings.NewReader(distServe), "opt-13b", "1")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name           string
		batch, context int
		prompt         int
		ms             float64
	}{
		{"prompt", 0, 0, 1000, 18 + 100 + 7},
		{"small batch", 10, 100, 0, 20 + 6e-4*1000 + 0.4},
		{"large batch", 96, 100, 0, 7 + 5e-4*9600 + 0.16*96},
	} {
		var w latency.StepWork
		if c.prompt > 0 {
			w.Add(0, c.prompt, true)
		}
		for range c.batch {
			w.Add(c.context-1, 1, true)
		}
		if got := p.Predict(w).Seconds() * 1000; math.Abs(got-c.ms) > 1e-3 {
			t.Errorf("%s: %v ms, want %v", c.name, got, c.ms)
		}
	}
	for _, c := range []struct{ model, degree, says string }{
		{"opt-66b", "1", "choose one of opt-13b"}, {"opt-13b", "8", "choose one of 1, 2"}, {"opt-13b", "2", "2 coefficients in prefill"},
	} {
		if _, err := latency.ReadDistServe(strings.NewReader(distServe), c.model, c.degree); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s, %s: error %v, which should speak of %q", c.model, c.degree, err, c.says)
		}
	}
}

// TestPublishedDistServe reads the published file, where it is at hand.
func TestPublishedDistServe(t *testing.T) {
	dir := os.Getenv("TANDEM_TRACES")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	file, err := os.Open(filepath.Join(dir, "profiler-a100-80g.distserve.json"))
	if err != nil {
		t.Skip("the published profile is not here")
	}
	defer file.Close()
	p, err := latency.ReadDistServe(file, "facebook/opt-13b", "1")
	if err != nil {
		t.Fatal(err)
	}
	var w latency.StepWork
	w.Add(0, 512, true)
	if got := p.Predict(w); got.Round(time.Millisecond) != 72*time.Millisecond {
		t.Errorf("a prompt of 512 tokens takes %v, want about 72 ms", got)
	}
}

func FuzzReadDistServe(f *testing.F) {
	f.Add([]byte(distServe))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := latency.ReadDistServe(bytes.NewReader(data), "opt-13b", "1")
		if err == nil && p.Validate() != nil {
			t.Fatal("an invalid profile was given out")
		}
	})
}

// grid is the work of steps of sizes at contexts.
func grid(decode bool) []latency.Work {
	var all []latency.Work
	for _, n := range []int{1, 2, 4, 8, 16, 32, 64, 128} {
		for _, context := range []int{32, 256, 1024} {
			var w latency.StepWork
			if decode {
				for range n {
					w.Add(context, 1, true)
				}
				all = append(all, w.Decode)
				continue
			}
			w.Add(context, n+1, n > 8)
			all = append(all, w.Prefill)
		}
	}
	return all
}

// TestFitFindsWhatWasMeasured: terms that made the times are found again.
func TestFitFindsWhatWasMeasured(t *testing.T) {
	prefill := latency.Terms{BaseMs: 3, PerTokenMs: 0.2, PerSquareMs: 1e-5, PerSampleMs: 0.5}
	small := latency.Terms{BaseMs: 9, PerTokenMs: 0.01, PerContextTokenMs: 1e-3}
	large := latency.Terms{BaseMs: 2, PerTokenMs: 0.9, PerContextTokenMs: 1e-3}
	time := func(terms latency.Terms, w latency.Work) float64 {
		return terms.BaseMs + terms.PerTokenMs*float64(w.Tokens) + terms.PerSquareMs*w.Squares + terms.PerContextTokenMs*w.Context + terms.PerSampleMs*float64(w.Samples)
	}
	var prompts, steps []latency.Measured
	for _, w := range grid(false) {
		prompts = append(prompts, latency.Measured{Work: w, Ms: time(prefill, w)})
	}
	for _, w := range grid(true) {
		terms := small
		if w.Tokens > 8 {
			terms = large
		}
		steps = append(steps, latency.Measured{Work: w, Ms: time(terms, w)})
	}
	near := func(got, want latency.Terms) bool {
		for _, pair := range [][2]float64{
			{got.BaseMs, want.BaseMs}, {got.PerTokenMs, want.PerTokenMs}, {got.PerSquareMs, want.PerSquareMs},
			{got.PerContextTokenMs, want.PerContextTokenMs}, {got.PerSampleMs, want.PerSampleMs},
		} {
			if math.Abs(pair[0]-pair[1]) > 1e-3*max(pair[1], 1e-3) {
				return false
			}
		}
		return true
	}
	regimes, e, err := latency.Fit(prompts, latency.FitOptions{Square: true, Sample: true, MostRegimes: 3})
	if err != nil || len(regimes) != 1 || !near(regimes[0].Terms, prefill) || e.Max > 1e-3 || e.Points != len(prompts) {
		t.Errorf("prefill: %+v, %+v, %v", regimes, e, err)
	}
	regimes, e, err = latency.Fit(steps, latency.FitOptions{Context: true, MostRegimes: 3})
	if err != nil || len(regimes) != 2 || regimes[0].UpTo != 8 || regimes[1].UpTo != 0 || !near(regimes[0].Terms, small) || !near(regimes[1].Terms, large) || e.Max > 1e-3 {
		t.Errorf("decode: %+v, %+v, %v", regimes, e, err)
	}
}

// TestFitHoldsAgainstNoise: with every time a little off, by chance, the fit is about as near
// to the truth everywhere. Errors that conspire could tilt it further.
func TestFitHoldsAgainstNoise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		truth := latency.Terms{
			BaseMs:            rapid.Float64Range(0.1, 50).Draw(t, "base"),
			PerTokenMs:        rapid.Float64Range(0.001, 2).Draw(t, "token"),
			PerContextTokenMs: rapid.Float64Range(0, 0.01).Draw(t, "context"),
		}
		noise := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "noise"), 0))
		var measured []latency.Measured
		var exact []float64
		for _, w := range grid(true) {
			ms := truth.BaseMs + truth.PerTokenMs*float64(w.Tokens) + truth.PerContextTokenMs*w.Context
			exact = append(exact, ms)
			measured = append(measured, latency.Measured{Work: w, Ms: ms * (0.95 + 0.1*noise.Float64())})
		}
		regimes, e, err := latency.Fit(measured, latency.FitOptions{Context: true, MostRegimes: 1})
		if err != nil {
			t.Fatal(err)
		}
		if e.Max > 0.12 {
			t.Fatalf("errors %+v under noise of 5%%", e)
		}
		for i, m := range measured {
			got := regimes[0].BaseMs + regimes[0].PerTokenMs*float64(m.Work.Tokens) + regimes[0].PerContextTokenMs*m.Work.Context
			if math.Abs(got/exact[i]-1) > 0.07 {
				t.Fatalf("%+v takes %v ms, the fit says %v", m.Work, exact[i], got)
			}
			if got < 0 {
				t.Fatal("a negative time")
			}
		}
	})
}

func TestFitRefusesNothing(t *testing.T) {
	for _, measured := range [][]latency.Measured{nil, {{Ms: 1}}, {{Work: latency.Work{Tokens: 1}}}} {
		if _, _, err := latency.Fit(measured, latency.FitOptions{MostRegimes: 1}); err == nil {
			t.Errorf("%v was fitted", measured)
		}
	}
	regimes, _, err := latency.Fit([]latency.Measured{{Work: latency.Work{Tokens: 4, Context: 9}, Ms: 7}}, latency.FitOptions{Context: true, MostRegimes: 4})
	if err != nil || len(regimes) != 1 {
		t.Errorf("one measurement: %v, %v", regimes, err)
	}
}
