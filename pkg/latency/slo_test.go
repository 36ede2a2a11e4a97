package latency_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/pkg/latency"
)

func TestParseSLO(t *testing.T) {
	ms := time.Millisecond
	for text, want := range map[string][]latency.Term{
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
		got, err := latency.ParseSLO(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if d := cmp.Diff(want, got.Terms); d != "" {
			t.Errorf("%q: %s", text, d)
		}
		again, err := latency.ParseSLO(got.String())
		if err != nil || cmp.Diff(got, again) != "" {
			t.Errorf("%q became %q, which reads as %+v, %v", text, got, again, err)
		}
	}
}

func TestParseSLOErrors(t *testing.T) {
	for text, want := range map[string]string{
		"tfft:p99<500ms":                   `character 1: expected a latency (ttft, second_token, itl, tpot or e2e), found "tfft"`,
		"ttft:p99<500ms,":                  `character 16: expected a latency (ttft, second_token, itl, tpot or e2e), found the end`,
		"ttft<500ms":                       `character 5: expected ":" and a percentile, as in ttft:p99<500ms, found "<"`,
		"ttft:99<500ms":                    `character 6: expected a percentile (p50, p99, p99.9, … or max), found "99"`,
		"ttft:p9.9.9<500ms":                `character 6: expected a percentile (p50, p99, p99.9, … or max), found "p9.9.9"`,
		"ttft:p999<500ms":                  `character 6: p999 is no percentile: it is above 0 and below 100; write p99.9`,
		"ttft:p0<500ms":                    `character 6: p0 is no percentile`,
		"ttft:mean<500ms":                  `character 6: expected a percentile`,
		"ttft:p99>500ms":                   `character 9: expected "<" or "<=" and a duration, found ">"`,
		"ttft:p99<500":                     `character 10: expected a duration with its unit (500ms, 1.5s), found "500"`,
		"ttft:p99<":                        `character 10: expected a duration with its unit (500ms, 1.5s), found the end`,
		"ttft:p99<0s":                      `character 10: a bound of 0s: it is above 0 and at most 1h0m0s`,
		"ttft:p99<-5ms":                    `character 10: a bound of -5ms`,
		"ttft:p99<5ms tpot:p99<1ms":        `character 14: expected "," and the next objective, or the end, found "t"`,
		"ttft:p99<5ms,ttft:p99<6ms":        `character 14: a second bound for ttft:p99; keep one`,
		"é":                                `character 1: expected a latency`,
		"ttft:p99.1234567<5ms":             `character 6: a percentile with more than 6 digits`,
		strings.Repeat(",", 3):             `character 1: expected a latency (ttft, second_token, itl, tpot or e2e), found ","`,
		"ttft:p99<5ms,  é:p99<6ms":         `character 16: expected a latency`,
		"ttft:p" + strings.Repeat("1", 99): `is no percentile`,
	} {
		_, err := latency.ParseSLO(text)
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
		slo, err := latency.ParseSLO(text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "objectives, character ") {
				t.Fatalf("an error without a place: %v", err)
			}
			return
		}
		again, err := latency.ParseSLO(slo.String())
		if err != nil {
			t.Fatalf("%q became %q: %v", text, slo, err)
		}
		if d := cmp.Diff(slo, again); d != "" {
			t.Fatalf("%q became %q: %s", text, slo, d)
		}
	})
}
