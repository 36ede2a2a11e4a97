package gpu_test

import (
	"math"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/gpu"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/cudatest"
	"github.com/tandem-serving/tandem/pkg/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) }

func TestSum(t *testing.T) {
	ms := func(each ...int) (all []time.Duration) {
		for _, n := range each {
			all = append(all, time.Duration(n)*time.Millisecond)
		}
		return all
	}
	spec := model.Spec{HiddenSize: 8, Layers: 3, Heads: 2, KVHeads: 1, HeadSize: 4, FFNSize: 10, VocabSize: 100}
	p := gpu.Plan{PromptTokens: 1000, Batches: []int{2}, ContextTokens: []int{320}, DecodeSteps: 2, Rounds: 2}
	limits := cuda.Limits{CopyBytes: 3e9, ReadBytes: 4e9, ProductFLOPs: 20e9, CublasLtFLOPs: 40e9, HostToDeviceBytes: 1e9, DeviceToHostBytes: 2e9, GraphKernel: 2 * time.Microsecond}
	slow := limits
	slow.GraphKernel, slow.ReadBytes = 3*time.Microsecond, 3e9
	r := gpu.Sum(p, spec, 10e9, []gpu.Round{
		{limits, time.Second, ms(10, 20), ms(4, 4), ms(30, 30), 8 * time.Millisecond, 2 * time.Millisecond, 6e9, 2e9, 5e9},
		{slow, 2 * time.Second, ms(20, 20), ms(4, 4), ms(30, 30), 6 * time.Millisecond, 1 * time.Millisecond, 8e9, 3e9, 4e9},
	})
	// Linear weights of a layer: queries, keys and values 8·16, output 8·8, FFN 3·8·10; the
	// head 800. KV of a position: 2·4 in each of 3 layers.
	weights := 2 * (3*(8*16+8*8+240) + 800.0)
	kv := 2 * (320 + 1.5) * (2 * 4 * 3 * 2)
	d := r.Decode[0]
	for name, pair := range map[string][2]float64{
		"copy": {r.Limits.CopyGBytes.Best, 3}, "read": {r.Limits.ReadGBytes.Best, 4}, "its median": {r.Limits.ReadGBytes.Median, 3},
		"kernel": {r.Limits.GraphKernelUs.Best, 2}, "cublas": {r.Limits.CublasLtGFLOPS.Median, 40},
		"prefill": {r.Prefill.Tokens.Best, 1000}, "of product": {r.Prefill.OfProduct, r.Prefill.GFLOPS.Median / 40},
		"tokens": {d.Tokens.Best, 4 / 0.030}, "shortest": {d.StepMs.Min, 10}, "middle": {d.StepMs.P50, 20}, "last": {d.StepMs.P99, 20},
		"bytes": {d.StepBytes, weights + kv}, "of floor": {d.OfFloor, (weights + kv) / 3e9 / 0.020},
		"cpu": {d.CPUUs, 3000}, "host": {d.HostUs, 500}, "short": {d.ShortStepMs, 4}, "short tokens": {float64(d.ShortTokens), 20},
		"attention": {d.AttentionGBytes, 2 * 300 * (2 * 4 * 3 * 2) / 0.016 / 1e9}, "of it": {d.AttentionOfFloor, d.AttentionGBytes / 3},
		"read alone": {r.KVRead[0].Alone.Best, 8}, "plain": {r.KVRead[0].Plain.Best, 3}, "beside": {r.KVRead[0].Beside.Best, 5}, "while copying": {r.KVRead[0].DecodeWhileCopying, 1.5},
	} {
		if !near(pair[0], pair[1]) {
			t.Errorf("%s: %v, want %v", name, pair[0], pair[1])
		}
	}
	r = gpu.Sum(p, spec, 10e9, []gpu.Round{{slow, time.Second, ms(4, 4), ms(5, 5), ms(4, 4), 0, 0, 1, 1, 1}})
	if d := r.Decode[0]; d.AttentionGBytes != 0 || d.AttentionOfFloor != 0 {
		t.Errorf("attention of %v GB/s in a difference below 0", d.AttentionGBytes)
	}
}

// TestNothingStaysOpen, whether a measurement ends well or not.
func TestNothingStaysOpen(t *testing.T) {
	device := cudatest.New(t)
	shape, err := model.Preset("tiny")
	if err != nil {
		t.Fatal(err)
	}
	p := gpu.Plan{PromptTokens: 20, ChunkTokens: 16, Batches: []int{1}, ContextTokens: []int{3}, DecodeSteps: 1, Rounds: 2, Products: cuda.Own, Weights: cuda.BF16, KV: cuda.KVBF16}
	for _, lost := range []bool{false, true} {
		m, err := model.Random(t.Context(), shape, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = gpu.Measure(t.Context(), m, p, gpu.Options{
			Load: cuda.Config{Driver: device.Driver}, LimitBytes: 1,
			Progress: func(done, _ int64) {
				if lost && done == 1 {
					device.Lose()
				}
			},
		})
		if (err != nil) != lost {
			t.Errorf("the device is lost: %v; %v", lost, err)
		}
		if !lost && device.InUse() {
			t.Error("something is open")
		}
	}
}
