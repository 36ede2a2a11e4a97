package integration_test

import (
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/cudatest"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

// Same tokens on a GPU: disaggregated or on one worker, in one chunk or in many, with and
// without a prefix hit, drawn or greedy. The workers share one emulated GPU, and KV goes
// from one's pages to the other's.
func TestSameTokensOnAGPU(t *testing.T) {
	longtest.Only(t)
	t.Parallel() // no other test here has a GPU
	gpu := cudatest.New(t)
	on := func(o *mesh.UpOptions) {
		o.Engine.Name, o.Engine.Device, o.Engine.CUDA.Driver = engines.Auto, "cuda:0", gpu.Driver
		o.ContextTokens, o.Engine.KVMemory, o.Engine.MaxBatchTokens, o.Engine.MaxSequences = 512, 4<<20, 256, 8
	}
	whole := clustertest.Start(t, on)
	chunked := clustertest.Start(t, func(o *mesh.UpOptions) {
		on(o)
		smallChunks(o)
		o.PrefillWorkers, o.DecodeWorkers = 1, 1
	})
	asked := []struct {
		prompt      string
		temperature float32
	}{{longPrompt(5), 0.8}, {"Once upon a time", 0}}
	if !longtest.All() {
		asked = asked[:1] // an emulated GPU takes its time
	}
	for i, a := range asked {
		want := generate(t, whole.Client, request(a.prompt, 8, a.temperature, aggregated)).Tokens
		for name, m := range map[string]*clustertest.Client{"whole": whole.Client, "in chunks": chunked.Client} {
			for _, again := range []string{"first", "after the same prefix"} {
				r := generate(t, m, request(a.prompt, 8, a.temperature, disaggregated))
				checkRoute(t, r, disaggregated)
				if !slices.Equal(r.Tokens, want) {
					t.Errorf("%s, %s, prompt %d: %v, want %v", name, again, i, r.Tokens, want)
				}
			}
		}
	}
	whole.AwaitIdle(t)
	chunked.AwaitIdle(t)
}
