package commands_test

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBenchEngine measures a tiny model: what is printed is there, and ratios are
// quotients of it.
func TestBenchEngine(t *testing.T) {
	args := []string{"bench", "engine", "--preset", "tiny", "--prompt", "64", "--decode", "4", "--batch", "2", "--threads", "1", "--rounds", "1", "--limits", "0s"}
	got := run(t.Context(), "", nil, append(args, "--json")...)
	if got.status != 0 {
		t.Fatalf("%+v", got)
	}
	said := last(t, got.stdout)
	number := func(key string) float64 {
		n, is := said[key].(float64)
		if !is || !(n > 0) {
			t.Errorf("%s is %v", key, said[key])
		}
		return n
	}
	for _, key := range []string{
		"prefill_tokens_per_s", "decode_tokens_per_s", "prefill_gflops_computed", "prefill_of_peak_computed", "barrier_ns",
		"prompt_tokens", "decode_steps", "batch", "context_tokens", "rounds", "threads", "chunk_tokens", "weight_bytes",
		"prefill_flops", "prefill_flops_computed", "decode_step_bytes", "decode_of_read",
	} {
		number(key)
	}
	for ratio, of := range map[string][2]string{
		"prefill_of_peak":          {"prefill_gflops", "peak_gflops"},
		"prefill_of_peak_computed": {"prefill_gflops_computed", "peak_gflops"},
		"decode_of_best_read":      {"decode_gbytes_per_s", "read_gbytes_per_s"},
	} {
		if is, want := number(ratio), number(of[0])/number(of[1]); math.Abs(is-want) > 1e-12*want {
			t.Errorf("%s is %v, not %s / %s = %v", ratio, is, of[0], of[1], want)
		}
	}
	for _, key := range []string{"allocs_per_step", "alloc_bytes_per_step"} {
		if n, is := said[key].(float64); !is || n < 0 { // the process has some now and then
			t.Errorf("%s is %v", key, said[key])
		}
	}
	if pairs := number("decode_pairs"); pairs != 4 {
		t.Errorf("%v pairs of a step and reading, not 4", pairs)
	}
	// A batch of two: each step reads once what two tokens need.
	if is, want := number("decode_gbytes_per_s"), number("decode_step_bytes")*number("decode_tokens_per_s")/2/1e9; math.Abs(is-want) > 1e-12*want {
		t.Errorf("decode reads %v GB/s, not %v", is, want)
	}
	for _, key := range []string{"median", "spread"} {
		if rates, is := said[key].(map[string]any); !is || len(rates) != 4 {
			t.Errorf("%s is %v", key, said[key])
		}
	}
	if _, is := said["valid"].(bool); !is || said["model"] != "tiny" || said["dtype"] != "bf16" || said["isa"] == "" {
		t.Errorf("%s", got.stdout)
	}
	if got := run(t.Context(), "", nil, append(args, "--isa", "portable")...); got.status != 0 || !strings.Contains(got.stdout, "of peak") ||
		!strings.Contains(got.stdout, " of memory reads at the same moments (median of 4 pairs); each step reads ") ||
		!strings.Contains(got.stdout, ", portable, threads 1") || !strings.Contains(strings.ToLower(got.stdout), "valid: ") {
		t.Errorf("for people: %+v", got)
	}
}

func TestBenchEngineOfAModel(t *testing.T) {
	got := run(t.Context(), "", nil, "bench", "engine", "--model", bundled, "--prompt", "16", "--decode", "2", "--threads", "1", "--rounds", "1", "--limits", "0s", "--json")
	if got.status != 0 || last(t, got.stdout)["model"] != "fable" {
		t.Errorf("%+v", got)
	}
}

// TestBenchEngineCache: what is wrong with the weight cache is said on a line of its
// own, and the measurement goes on.
func TestBenchEngineCache(t *testing.T) {
	cache := t.TempDir()
	args := []string{"bench", "engine", "--model", bundled, "--prompt", "16", "--decode", "2", "--threads", "1", "--rounds", "1", "--limits", "0s", "--cpu-weight-cache", cache}
	if got := run(t.Context(), "", nil, args...); got.status != 0 || strings.Contains(got.stderr, "warning") {
		t.Fatalf("%+v", got)
	}
	kept, err := filepath.Glob(filepath.Join(cache, "*"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("the weight cache has %v (%v)", kept, err)
	}
	if err := os.Truncate(kept[0], 5000); err != nil {
		t.Fatal(err)
	}
	if got := run(t.Context(), "", nil, args...); got.status != 0 || !strings.Contains("\n"+got.stderr, "\nwarning: read packed weights "+kept[0]) {
		t.Errorf("%+v", got)
	}
}

func TestBenchEngineRefuses(t *testing.T) {
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{
		{"--dtype fp8", 2, "use bf16, int8 or int4"},
		{"--dtype f32", 2, "--dtype"},
		{"--threads -1", 2, "--threads"},
		{"--prompt 0", 2, "--prompt"},
		{"--preset tiny --prompt 513", 2, "512 tokens that tiny takes"},
		{"--preset tiny --context 500", 2, "--context and --decode"},
		{"--preset huge", 2, "--preset"},
		{"--preset tiny --model x", 2, "both"},
		{"--rounds 0", 2, "--rounds"},
		{"--batch 513", 2, "--batch"},
		{"--limits 1h", 2, "--limits"},
		{"--model " + bundled + " --prompt 1000000", 1, "tokens that fable takes"},
		{"--model /nowhere", 1, "/nowhere"},
		{"--preset tiny --isa mmx", 1, "mmx"},
		{"--model " + bundled + " --batch 512 --context 3000000", 2, "--context"},
	} {
		got := run(t.Context(), "", nil, append([]string{"bench", "engine"}, strings.Fields(c.args)...)...)
		checkFailure(t, got, c.status, c.says)
	}
}
