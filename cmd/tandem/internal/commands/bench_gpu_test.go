package commands_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/cudatest"
)

// inC leaves a test to runs without -short, which is how the race detector's are called: what
// takes its time is in C, and other tests have its goroutines.
func inC(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long, in C")
	}
}

// onEmulated is `bench engine` on the emulated driver, as small as can be.
func onEmulated(t *testing.T) []string {
	return []string{
		"bench", "engine", "--device", "cuda:0", "--cuda-driver", cudatest.New(t).Driver, "--preset", "tiny",
		"--prompt", "40", "--chunk", "32", "--decode", "2", "--rounds", "1", "--limits", "0s",
	}
}

// TestBenchGPU measures a tiny model: what is printed is there, and ratios are quotients of
// it.
func TestBenchGPU(t *testing.T) {
	args := append(onEmulated(t), "--batch", "1,3", "--context", "0,256", "--cuda-products", "cublaslt", "--cublaslt", cudatest.New(t).CublasLt)
	got := run(t.Context(), "", nil, append(args, "--json")...)
	if got.status != 0 {
		t.Fatalf("%+v", got)
	}
	said := last(t, got.stdout)
	at := func(path ...any) float64 {
		t.Helper()
		var x any = said
		for _, p := range path {
			switch p := p.(type) {
			case string:
				object, _ := x.(map[string]any)
				x = object[p]
			case int:
				if list, is := x.([]any); is && p < len(list) {
					x = list[p]
				}
			}
		}
		n, is := x.(float64)
		if !is || !(n > 0) {
			t.Errorf("%v is %v", path, x)
		}
		return n
	}
	for _, key := range []string{"copy_gbytes_per_s", "read_gbytes_per_s", "own_product_gflops", "host_to_device_gbytes_per_s", "device_to_host_gbytes_per_s"} {
		if best, median := at("limits", key, "best"), at("limits", key, "median"); best < median {
			t.Errorf("%s: the best is %v, the median %v", key, best, median)
		}
	}
	at("limits", "graph_kernel_us", "best")
	for _, key := range []string{"load_s", "engine_s", "first_step_s", "total_s"} {
		at("start", key)
	}
	for _, key := range []string{"weight_bytes", "kv_bytes", "workspace_bytes"} {
		at(key)
	}
	if is, want := at("prefill", "of_product"), at("prefill", "gflops_computed", "median")/max(at("limits", "own_product_gflops", "median"), at("limits", "cublaslt_product_gflops", "median")); math.Abs(is-want) > 1e-9*want {
		t.Errorf("prefill is %v of a product, not %v", is, want)
	}
	at("prefill", "tokens_per_s", "best")
	floor := max(at("limits", "copy_gbytes_per_s", "median"), at("limits", "read_gbytes_per_s", "median"))
	var cases [][2]float64
	for i := range 4 {
		context, _ := said["decode"].([]any)[i].(map[string]any)["context_tokens"].(float64)
		cases = append(cases, [2]float64{at("decode", i, "batch"), context})
		at("decode", i, "tokens_per_s", "median")
		step := at("decode", i, "step_ms", "p50")
		if least, most := at("decode", i, "step_ms", "min"), at("decode", i, "step_ms", "p99"); least > step || step > most {
			t.Errorf("steps of %v, %v and %v ms", least, step, most)
		}
		if is, want := at("decode", i, "decode_of_floor"), at("decode", i, "step_bytes")/1e6/floor/step; math.Abs(is-want) > 1e-9*want {
			t.Errorf("decode is %v of the floor, not %v", is, want)
		}
		at("decode", i, "cpu_us_per_step")
		if host, whole := at("decode", i, "host_us_per_step"), 1e3*at("decode", i, "step_ms", "p99"); host > whole {
			t.Errorf("of steps of %v µs the host takes %v", whole, host)
		}
		if context > 0 {
			at("decode", i, "short_step_ms")
		}
	}
	if want := [][2]float64{{1, 0}, {3, 0}, {1, 256}, {3, 256}}; !slices.Equal(cases, want) {
		t.Errorf("measured %v, want %v", cases, want)
	}
	for i, n := range []float64{1, 4} {
		at("kv_read", i, "alone_gbytes_per_s", "best")
		at("kv_read", i, "plain_gbytes_per_s", "best")
		at("kv_read", i, "beside_decode_gbytes_per_s", "best")
		if readers := at("kv_read", i, "readers"); readers != n {
			t.Errorf("%v readers", readers)
		}
		if is, want := at("kv_read", i, "decode_while_copying"), at("kv_read", i, "step_ms", "p50")/at("decode", 0, "step_ms", "p50"); math.Abs(is-want) > 1e-9*want {
			t.Errorf("beside copies a step takes %v times as long, not %v", is, want)
		}
	}
	if said["model"] != "tiny" || said["device"] == "" || said["driver_cuda"] == "" || said["arithmetic_class"] != cuda.ArithmeticClass(cuda.BF16, cuda.KVBF16, cuda.CublasLt) {
		t.Errorf("%s", got.stdout)
	}
}

// TestBenchGPUTypes: what a step reads follows the types of weights and KV.
func TestBenchGPUTypes(t *testing.T) {
	inC(t)
	bytes := func(weights cuda.WeightType, kv cuda.KVType) float64 {
		t.Helper()
		got := run(t.Context(), "", nil, append(onEmulated(t), "--context", "64", "--cuda-weights", string(weights), "--cuda-kv", string(kv), "--json")...)
		if got.status != 0 {
			t.Fatalf("%+v", got)
		}
		said := last(t, got.stdout)
		if said["weights"] != string(weights) || said["kv"] != string(kv) || said["arithmetic_class"] != cuda.ArithmeticClass(weights, kv, cuda.Own) {
			t.Errorf("%s and %s: %s", weights, kv, got.stdout)
		}
		decode, _ := said["decode"].([]any)[0].(map[string]any)
		step, _ := decode["step_bytes"].(float64)
		return step
	}
	all := bytes(cuda.BF16, cuda.KVBF16)
	for _, weights := range cuda.WeightTypes()[1:] {
		if fewer := bytes(weights, cuda.KVBF16); fewer >= all {
			t.Errorf("weights in %s: %v bytes a step, in bf16 %v", weights, fewer, all)
		}
	}
	for _, kv := range cuda.KVTypes()[1:] {
		if fewer := bytes(cuda.BF16, kv); fewer >= all {
			t.Errorf("KV in %s: %v bytes a step, in bf16 %v", kv, fewer, all)
		}
	}
}

func TestBenchGPUForPeople(t *testing.T) {
	got := run(t.Context(), "", nil, append(onEmulated(t), "--no-graphs", "--context", "5")...)
	if got.status != 0 {
		t.Fatalf("%+v", got)
	}
	for _, line := range []string{"tiny, weights of ", "decode without graphs", "limit: device memory copies", "decode, batch 1, context 5", "of the floor for ", "readers 4: a decode step takes ", "to the end of the first step"} {
		if !strings.Contains(got.stdout, line) {
			t.Errorf("no %q in:\n%s", line, got.stdout)
		}
	}
}

func TestBenchGPUOfAModel(t *testing.T) {
	inC(t)
	args := onEmulated(t)
	args[slices.Index(args, "--preset")] = "--model"
	args[slices.Index(args, "tiny")] = bundled
	args[slices.Index(args, "40")] = "8"
	got := run(t.Context(), "", nil, append(args, "--context", "1", "--json")...)
	if got.status != 0 || last(t, got.stdout)["model"] != "fable" {
		t.Errorf("%+v", got)
	}
}

func TestBenchGPURefuses(t *testing.T) {
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{
		{"--device gpu", 2, "--device"},
		{"--device auto", 2, "--device"},
		{"--device cuda:0 --threads 2", 2, "--threads is for the CPU engine only"},
		{"--device cuda:0 --dtype int8", 2, "--dtype is for the CPU engine only"},
		{"--device cuda:0 --cuda-products mine", 2, "--cuda-products"},
		{"--cublaslt x", 2, "--cublaslt is for a GPU only"},
		{"--cuda-weights bf16", 2, "--cuda-weights is for a GPU only"},
		{"--cuda-kv bf16", 2, "--cuda-kv is for a GPU only"},
		{"--device cuda:0 --cuda-weights int3", 2, "--cuda-weights: "},
		{"--device cuda:0 --cuda-kv int3", 2, "--cuda-kv: "},
		{"--device cuda:0 --cuda-weights int8 --cuda-products cublaslt", 2, "supports only bf16"},
		{"--no-graphs", 2, "--no-graphs is for a GPU only"},
		{"--batch 1,2", 2, "--batch and --context: the CPU engine"},
		{"--device cuda:0 --limits 1s", 2, "--limits"},
		{"--device cuda:0 --batch 0", 2, "--batch"},
		{"--device cuda:0 --context -1", 2, "--context"},
		{"--device cuda:0 --rounds 0", 2, "--rounds"},
		{"--device cuda:0 --chunk 0", 2, "--chunk"},
		{"--device cuda:0 --preset tiny --prompt 513", 2, "512 tokens that tiny takes"},
		{"--device cuda:0 --preset tiny --prompt 8 --context 500", 2, "--context and --decode"},
		{"--device cuda:0 --preset tiny --model x", 2, "both"},
		{"--device cuda:0 --cuda-driver /nowhere/libcuda.so.1", 1, "no CUDA driver"},
	} {
		got := run(t.Context(), "", nil, append([]string{"bench", "engine"}, strings.Fields(c.args)...)...)
		checkFailure(t, got, c.status, c.says)
	}
}
