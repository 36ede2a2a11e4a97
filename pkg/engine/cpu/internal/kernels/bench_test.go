package kernels_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// BenchmarkAttention runs one layer's attention on one thread, with keys and values in
// bf16 and in int8 in turn. The figures are those of the fastest calls, which say most on
// a machine that others use too. The longest context is more than most caches hold.
func BenchmarkAttention(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	const most = 131072
	blocks := make([]kvcache.BlockID, most/32)
	for i := range blocks {
		blocks[i] = kvcache.BlockID(i)
	}
	formats := []kernels.Format{kernels.Pairs, kernels.Int8}
	shapes, pages := map[kernels.Format]kernels.Shape{}, map[kernels.Format][]byte{}
	for _, f := range formats {
		s := kernels.Shape{Heads: 16, KVHeads: 4, HeadSize: 64, BlockTokens: 32, KV: f}
		memory, err := kernels.Allocate(most / 32 * s.SliceBytes()) // as an engine's pages are
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(memory.Free)
		p := memory.Bytes()
		for i := range len(p) / 2 {
			x := ordinary(r)
			p[2*i], p[2*i+1] = byte(x), byte(x>>8)
		}
		shapes[f], pages[f] = s, p
	}
	set := kernels.Usable()[0]
	for _, c := range []struct{ start, tokens, window int }{{960, 64, 0}, {1000, 1, 0}, {0, 32, 0}, {960, 64, 128}, {1000, 1, 128}, {4095, 1, 0}, {most - 1, 1, 0}, {16000, 32, 0}} {
		q := fill(r, c.tokens*16*64, ordinary)
		b.Run(fmt.Sprintf("%d-at-%d-window-%d", c.tokens, c.start, c.window), func(b *testing.B) {
			best := map[kernels.Format]time.Duration{kernels.Pairs: math.MaxInt64, kernels.Int8: math.MaxInt64}
			for b.Loop() {
				for _, f := range formats {
					began := time.Now()
					set.ProbeAttention(shapes[f], q, pages[f], blocks, c.start, c.window, 0.125)
					best[f] = min(best[f], time.Since(began))
				}
			}
			b.ReportMetric(float64(best[kernels.Pairs].Nanoseconds())/1000, "bf16-µs")
			b.ReportMetric(float64(best[kernels.Int8].Nanoseconds())/1000, "int8-µs")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkProducts runs one matrix product on one thread, in all formats in turn: with
// weights that a cache holds, and with some that none does, read by one row.
func BenchmarkProducts(b *testing.B) {
	set := kernels.Usable()[0]
	for _, c := range []struct{ rows, n int }{{1, 5632}, {2, 5632}, {3, 5632}, {4, 5632}, {8, 5632}, {64, 5632}, {192, 5632}, {1, 131072}} {
		b.Run(fmt.Sprintf("%dx1024x%d", c.rows, c.n), func(b *testing.B) {
			least := map[kernels.Format]time.Duration{kernels.Pairs: math.MaxInt64, kernels.Int8: math.MaxInt64, kernels.Int4: math.MaxInt64}
			for b.Loop() {
				for format := range least {
					took, err := set.ProbeSpeed(format, c.rows, 1024, c.n, 3)
					if err != nil {
						b.Fatal(err)
					}
					least[format] = min(least[format], took)
				}
			}
			products := float64(c.rows) * 1024 * float64(c.n)
			b.ReportMetric(products/float64(least[kernels.Pairs]), "bf16-GMAC/s")
			b.ReportMetric(products/float64(least[kernels.Int8]), "int8-GMAC/s")
			b.ReportMetric(products/float64(least[kernels.Int4]), "int4-GMAC/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}
