package mesh_test

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
)

// Types of a GPU's weights and KV are refused where no GPU computes, and those of weights
// where cuBLASLt does.
func TestCUDATypes(t *testing.T) {
	weights, kv := cuda.WeightTypes(), cuda.KVTypes()
	for _, c := range []struct {
		flag   string
		change func(*mesh.EngineOptions)
	}{
		{"--cuda-weights", func(e *mesh.EngineOptions) { e.CUDAWeights = weights[len(weights)-1] }},
		{"--cuda-kv", func(e *mesh.EngineOptions) { e.CUDAKV = kv[len(kv)-1] }},
	} {
		only := len(weights) == 1
		if c.flag == "--cuda-kv" {
			only = len(kv) == 1
		}
		for _, place := range []struct {
			name    string
			refused bool
			change  func(*mesh.EngineOptions)
		}{
			{"the CPU", true, func(e *mesh.EngineOptions) { e.Device = mesh.DeviceCPU }},
			{"the simulated engine", true, func(e *mesh.EngineOptions) { e.Name = mesh.EngineSimulated }},
			{"cuBLASLt", c.flag == "--cuda-weights", func(e *mesh.EngineOptions) { e.CUDAProducts = cuda.CublasLt }},
			{"a GPU", false, func(e *mesh.EngineOptions) { e.Device = "cuda:1" }},
			{"whatever there is", false, func(*mesh.EngineOptions) {}},
		} {
			o := mesh.DefaultOptions()
			place.change(&o.Engine)
			c.change(&o.Engine)
			if err := o.Validate(); (err != nil) != (place.refused && !only) || err != nil && !strings.HasPrefix(err.Error(), c.flag+": ") {
				t.Errorf("%s on %s: %v", c.flag, place.name, err)
			}
		}
	}
}
