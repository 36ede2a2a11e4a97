package commands_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/cudatest"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// gpuProfileArgs is `profile` on the emulated driver, as small as can be.
func gpuProfileArgs(device *cudatest.GPU) []string {
	return []string{
		"profile", "--device", "cuda:0", "--cuda-driver", device.Driver, "--preset", "tiny",
		"--duration", "1s", "--max-context", "160", "--max-chunk", "32", "--max-sequences", "4",
	}
}

// TestProfileGPU measures a tiny model: the file is one that the simulated engine takes, and
// nothing stays open. The model is in memory only.
func TestProfileGPU(t *testing.T) {
	device, temp := cudatest.New(t), t.TempDir()
	t.Setenv("TMPDIR", temp)
	out := filepath.Join(t.TempDir(), "p.json")
	args := append(gpuProfileArgs(device), "--layers", "--cublaslt", device.CublasLt, "--out", out)
	got := run(t.Context(), "", nil, append(args, "--json")...)
	wantMeasured(t, got)
	var report struct {
		Profile *latency.Profile
		Points  []struct {
			Kind           string
			Chunk, Context int
			MedianMs       float64 `json:"median_ms"`
			Repeats        int
		}
		Reach map[string]float64
		Valid *bool
	}
	if err := json.Unmarshal([]byte(got.stdout), &report); err != nil {
		t.Fatal(err)
	}
	kinds := make(map[string]int)
	for _, p := range report.Points {
		kinds[p.Kind]++
		if p.MedianMs <= 0 || p.Repeats < 1 || p.Chunk == 2 || p.Context == 16 {
			t.Errorf("point %+v", p)
		}
	}
	if kinds["prefill"] == 0 || kinds["decode"] == 0 || report.Valid == nil {
		t.Errorf("kinds %v, valid %v", kinds, report.Valid)
	}
	for _, key := range []string{"peak_gflops", "read_gbytes_per_s", "prefill_of_peak", "decode_of_read", "weight_bytes"} {
		if !(report.Reach[key] > 0) {
			t.Errorf("%s is %v", key, report.Reach[key])
		}
	}
	p := readProfile(t, out)
	if p.Model != "tiny" || p.Engine != cuda.ArithmeticClass(cuda.BF16, cuda.KVBF16, cuda.Own) || p.Device == "" || p.Threads != 0 || p.Limits == nil || len(p.Layers["decode"].LayersMs) != 2 {
		t.Errorf("wrote %+v", p)
	}
	if device.InUse() {
		t.Error("something is open")
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if got := run(t.Context(), "", nil, "bench", "scheduler", "--profile", out, "--requests", "2"); got.status != 0 {
		t.Errorf("the profile is not taken: %+v", got)
	}
}

// TestProfileGPUTypes: weights and KV of every type, in little memory and for people.
func TestProfileGPUTypes(t *testing.T) {
	inC(t)
	for _, flags := range []string{"--cuda-weights int8 --no-graphs", "--cuda-weights fp8 --cuda-kv fp8 --kv-memory 64KiB", "--cuda-products cublaslt"} {
		device := cudatest.New(t)
		args := append(gpuProfileArgs(device), strings.Fields(flags)...)
		if strings.Contains(flags, "cublaslt") {
			args = append(args, "--cublaslt", device.CublasLt)
		}
		got := run(t.Context(), "", nil, args...)
		wantMeasured(t, got)
		for _, says := range []string{"tiny on cuda/", "fitted ms", "prefill  fitted to", "GFLOP/s of"} {
			if !strings.Contains(got.stdout, says) {
				t.Errorf("%s: the report does not say %q:\n%s", flags, says, got.stdout)
			}
		}
		if strings.Contains(flags, "--kv-memory") && !strings.Contains(got.stdout, "were left out") {
			t.Errorf("nothing was left out:\n%s", got.stdout)
		}
	}
}

func TestProfileGPURefuses(t *testing.T) {
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{
		{"--device gpu", 2, "--device"},
		{"--device cuda:0 --threads 2", 2, "--threads is for the CPU engine only"},
		{"--device cuda:0 --cpu-weights int8", 2, "--cpu-weights is for the CPU engine only"},
		{"--device cuda:0 --cpu-weight-cache x", 2, "--cpu-weight-cache is for the CPU engine only"},
		{"--device cuda:0 --from-distserve x --entry y", 2, "--from-distserve is for the CPU engine only"},
		{"--cuda-weights int8", 2, "--cuda-weights is for a GPU only"},
		{"--cuda-kv fp8", 2, "--cuda-kv is for a GPU only"},
		{"--device cuda:0 --cuda-weights int3", 2, "--cuda-weights: "},
		{"--device cuda:0 --cuda-weights int8 --cuda-products cublaslt", 2, "supports only bf16"},
		{"--device cuda:0 --max-chunk 65536", 2, "--max-chunk"},
		{"--device cuda:0 --preset tiny --model x", 2, "both"},
		{"--device cuda:0 --cuda-driver /nowhere/libcuda.so.1", 1, "no CUDA driver"},
	} {
		got := run(t.Context(), "", nil, append([]string{"profile"}, strings.Fields(c.args)...)...)
		checkFailure(t, got, c.status, c.says)
	}
	// An environment that serves from a GPU neither keeps the CPU from being measured nor
	// chooses what is measured on the GPU.
	device := cudatest.New(t)
	env := []string{"TANDEM_DEVICE=auto", "TANDEM_CUDA_WEIGHTS=fp8", "TANDEM_CUDA_DRIVER=" + device.Driver}
	checkFailure(t, run(t.Context(), "", env, "profile", "--model", "/nowhere"), 1, "/nowhere")
	checkFailure(t, run(t.Context(), "", env, "profile", "--device", "cuda:0", "--model", "/nowhere"), 1, "/nowhere")
	for args, says := range map[string]string{
		"--block-tokens 7": "use 16",
		"--model /nowhere": "/nowhere",
		"--kv-memory 1TiB": "KV blocks",
	} {
		given := gpuProfileArgs(device)
		if strings.HasPrefix(args, "--model") {
			given = append(given[:5:5], given[7:]...)
		}
		got := run(t.Context(), "", nil, append(given, strings.Fields(args)...)...)
		checkFailure(t, got, 1, says)
	}
	if device.InUse() {
		t.Error("something is open")
	}
}
