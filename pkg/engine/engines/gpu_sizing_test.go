package engines_test

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
)

// A model that does not fit a GPU, or whose full context does not, is refused with the
// flags of the types with which it would, if there are such.
func TestGPURemedies(t *testing.T) {
	int8 := engines.SmallerTypes{Flags: "--cuda-weights int8", Weights: 500, Block: 10}
	kv := engines.SmallerTypes{Flags: "--cuda-kv fp8", Weights: 1000, Block: 5}
	both := engines.SmallerTypes{Flags: "--cuda-weights int8 --cuda-kv fp8", Weights: 500, Block: 5}
	for _, c := range []struct {
		budget    int64
		asked     bytesize.Size
		smaller   []engines.SmallerTypes
		says, not string
	}{
		{2000, bytesize.Auto, nil, "", ""},
		{900, bytesize.Auto, nil, "or pass --device cpu", "--cuda"},
		{900, bytesize.Auto, []engines.SmallerTypes{int8, kv}, "pass --cuda-weights int8, or --device cpu", "--cuda-kv"},
		// One block of a full context is not what is offered where another type has all.
		{1007, bytesize.Auto, []engines.SmallerTypes{kv, int8, both}, "pass --cuda-weights int8 --cuda-kv fp8, or --device cpu", "pass --cuda-kv"},
		{505, bytesize.Auto, []engines.SmallerTypes{int8, kv, both}, "pass --cuda-weights int8 --cuda-kv fp8, or --device cpu", ""},
		{400, bytesize.Auto, []engines.SmallerTypes{int8, kv, both}, "or pass --device cpu", "--cuda"},
		{1600, bytesize.Auto, []engines.SmallerTypes{int8, kv, both}, "pass --cuda-weights int8, or --context-tokens 960", ""},
		{1550, bytesize.Auto, []engines.SmallerTypes{kv, both}, "pass --cuda-kv fp8, or --context-tokens 880", ""},
		{1400, bytesize.Auto, []engines.SmallerTypes{kv}, "pass --context-tokens 640, or", "--cuda"},
		// What was asked for is no more with other weights.
		{3000, 600, []engines.SmallerTypes{int8}, "pass --context-tokens 960, or", "--cuda"},
		{3000, 600, []engines.SmallerTypes{int8, kv}, "pass --cuda-kv fp8, or --context-tokens 960", ""},
		{1800, 900, []engines.SmallerTypes{int8}, "pass less", "--cuda"},
	} {
		_, err := engines.GPUKVMemory(c.budget, c.asked, c.smaller...)
		if c.says == "" {
			if err != nil {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.says) || c.not != "" && strings.Contains(err.Error(), c.not) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// Each type that takes less than what was asked for is offered, single flags first; with
// cuBLASLt's products, which take bf16 weights, only those of KV.
func TestGPUTypes(t *testing.T) {
	config := defaults()
	for _, products := range []cuda.Products{cuda.Own, cuda.CublasLt} {
		config.CUDA.Products = products
		flags := engines.GPUTypes(llama8B(), config)
		joined := strings.Join(flags, "\n")
		for _, weights := range cuda.WeightTypes()[1:] {
			if offered := strings.Contains(joined, "--cuda-weights "+string(weights)); offered != (products == cuda.Own) {
				t.Errorf("weights in %s with %s products are offered: %v", weights, products, offered)
			}
		}
		for _, kv := range cuda.KVTypes()[1:] {
			if !strings.Contains(joined, "--cuda-kv "+string(kv)) {
				t.Errorf("KV in %s is not offered", kv)
			}
		}
		for i := 1; i < len(flags); i++ {
			if strings.Count(flags[i-1], "--") > strings.Count(flags[i], "--") {
				t.Errorf("%q is before %q", flags[i-1], flags[i])
			}
		}
	}
	if len(cuda.WeightTypes()) == 1 && len(cuda.KVTypes()) == 1 && len(engines.GPUTypes(llama8B(), defaults())) > 0 {
		t.Error("types are offered that there are not")
	}
}
