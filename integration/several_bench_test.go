package integration_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/integration/clustertest"
)

// BenchmarkSeveralAnswers compares eight answers over one prefill with eight requests that begin
// together, each with the prompt: tokens a second, prompt tokens computed and bytes of KV sent, for
// each prompt.
func BenchmarkSeveralAnswers(b *testing.B) {
	const n, tokens, prompt = 8, 64, 400
	for _, policy := range []string{"disaggregated", "slo"} {
		for _, shared := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/shared=%v", policy, shared), func(b *testing.B) {
				m := clustertest.Start(b, func(o *mesh.UpOptions) { o.HTTP, o.Router.Routing.Policy = "127.0.0.1:0", policy })
				number := 0
				run := func() {
					number++
					ids := make([]int, prompt)
					for i := range ids {
						ids[i] = 10 + (number*7919+i*104729)%4000
					}
					ask := func(seed, n int) {
						completions(b, m, map[string]any{"prompt": ids, "max_tokens": tokens, "ignore_eos": true, "temperature": 1, "seed": seed, "n": n})
					}
					if shared {
						ask(1, n)
						return
					}
					var wait sync.WaitGroup
					for i := range n {
						wait.Go(func() { ask(1+i, 1) })
					}
					wait.Wait()
				}
				for range 3 { // until steps are measured
					run()
				}
				steps, sent := counted(b, m, "tandem_worker_step_tokens_total", ""), received(b, m)
				for b.Loop() {
					run()
				}
				computed := counted(b, m, "tandem_worker_step_tokens_total", "") - steps - b.N*n*(tokens-1)
				b.ReportMetric(float64(b.N*n*tokens)/b.Elapsed().Seconds(), "tokens/s")
				b.ReportMetric(float64(computed)/float64(b.N), "prompt-tokens/op")
				b.ReportMetric(float64(received(b, m)-sent)/float64(b.N), "KV-bytes/op")
			})
		}
	}
}
