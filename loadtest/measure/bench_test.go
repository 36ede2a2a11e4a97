package measure_test

import (
	"testing"

	"github.com/tandem-serving/tandem/loadtest/measure"
)

// A run of ten minutes at 100 requests a second, 100 tokens each.
func BenchmarkSummarize(b *testing.B) {
	run := queue{rate: 100, places: 64, service: 500 * ms, seconds: 600, tokens: 100}.run(1)
	b.ReportAllocs()
	for b.Loop() {
		if s := measure.Summarize(run, measure.Options{}); s.ITL.Count < 5_000_000 || s.ITL.P999 == nil {
			b.Fatalf("%d gaps", s.ITL.Count)
		}
	}
}
