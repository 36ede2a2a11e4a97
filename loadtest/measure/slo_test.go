package measure_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-serving/tandem/loadtest/measure"
)

func TestParseSLO(t *testing.T) {
	ms := time.Millisecond
	for text, want := range map[string][]measure.Term{
		"":               nil,
		"  ":             nil,
		"ttft:p99<500ms": {{Latency: "ttft", Percentile: 99, Bound: 500 * ms}},
		"ttft:p99<500ms,tpot:p99<30ms,e2e:p90<=2s,itl:max<1s": {
			{Latency: "ttft", Percentile: 99, Bound: 500 * ms},
			{Latency: "tpot", Percentile: 99, Bound: 30 * ms},
			{Latency: "e2e", Percentile: 90, Bound: 2000 * ms, Inclusive: true},
			{Latency: "itl", Percentile: 100, Bound: 1000 * ms},
		},
		" second_token : p99.99 < 1.5s , ttft:p50<=1m ": {
			{Latency: "second_token", Percentile: 99.99, Bound: 1500 * ms},
			{Latency: "ttft", Percentile: 50, Bound: time.Minute, Inclusive: true},
		},
		"ttft:p50<1s,ttft:p99<2s": {
			{Latency: "ttft", Percentile: 50, Bound: 1000 * ms}, {Latency: "ttft", Percentile: 99, Bound: 2000 * ms},
		},
	} {
		got, err := measure.ParseSLO(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if d := cmp.Diff(want, got.Terms); d != "" {
			t.Errorf("%q: %s", text, d)
		}
		again, err := measure.ParseSLO(got.String())
		if err != nil || cmp.Diff(got, again) != "" {
			t.Errorf("%q became %q, which reads as %+v, %v", text, got, again, err)
		}
	}
}

func TestParseSLOErrors(t *testing.T) {
	for text, want := range map[string]string{
		"tfft:p99<500ms":            `objective "tfft:p99<500ms": expected a latency (ttft, second_token, itl, tpot or e2e), found "tfft"`,
		"ttft:p99<500ms,":           `objective "": expected a latency, a percentile and a duration, as in ttft:p99<500ms`,
		"ttft<500ms":                `objective "ttft<500ms": expected a latency, a percentile and a duration`,
		"ttft:99<500ms":             `objective "ttft:99<500ms": expected a percentile (p50, p99, p99.9, … or max), found "99"`,
		"ttft:p9.9.9<500ms":         `expected a percentile (p50, p99, p99.9, … or max), found "p9.9.9"`,
		"ttft:pinf<500ms":           `expected a percentile (p50, p99, p99.9, … or max), found "pinf"`,
		"ttft:p999<500ms":           `p999 is not a percentile: it must be above 0 and below 100; write p99.9`,
		"ttft:p0<500ms":             `p0 is not a percentile`,
		"ttft:mean<500ms":           `expected a percentile`,
		"ttft:p99>500ms":            `objective "ttft:p99>500ms": expected a latency, a percentile and a duration`,
		"ttft:p99<500":              `expected a duration with its unit (500ms, 1.5s), found "500"`,
		"ttft:p99<":                 `expected a duration with its unit (500ms, 1.5s), found ""`,
		"ttft:p99<0s":               `a bound of 0s: it must be above 0 and at most 1h0m0s`,
		"ttft:p99<-5ms":             `a bound of -5ms`,
		"ttft:p99<5ms tpot:p99<1ms": `expected a duration with its unit (500ms, 1.5s), found "5ms tpot:p99<1ms"`,
		"ttft:p99<5ms,ttft:p99<6ms": `objective "ttft:p99<6ms": a second bound for ttft:p99: keep one`,
		"é":                         `objective "é": expected a latency`,
		"ttft:p99.1234567<5ms":      `a percentile with more than 6 digits`,
		strings.Repeat(",", 3):      `objective "": expected a latency, a percentile and a duration`,
		"ttft:p99<5ms,  é:p99<6ms":  `objective "é:p99<6ms": expected a latency`,
		"ttft:p" + strings.Repeat("1", 99) + "<1s": `is not a percentile`,
	} {
		_, err := measure.ParseSLO(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParseSLO(f *testing.F) {
	for _, seed := range []string{"ttft:p99<500ms,tpot:p99<30ms", "e2e:p90<=2s", "itl:max<1s", "ttft:p99.99 < 1h", ",", "ttft:p99<1µs"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		slo, err := measure.ParseSLO(text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "objective ") {
				t.Fatalf("an error that names no objective: %v", err)
			}
			return
		}
		again, err := measure.ParseSLO(slo.String())
		if err != nil {
			t.Fatalf("%q became %q: %v", text, slo, err)
		}
		if d := cmp.Diff(slo, again); d != "" {
			t.Fatalf("%q became %q: %s", text, slo, d)
		}
	})
}
