package commands_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/latency"
)

func readProfile(t *testing.T, path string) *latency.Profile {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	p, err := latency.ReadProfile(file)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// wantMeasured fails the test unless a profile was measured, even on a machine that does
// something else as well: then the status says that it is not valid.
func wantMeasured(t *testing.T, got outcome) {
	t.Helper()
	if disturbed := got.status == 1 && strings.Contains(got.stderr, "tandem: NOT VALID: the machine was disturbed"); got.status != 0 && !disturbed {
		t.Fatalf("status %d: %s", got.status, got.stderr)
	}
}

// TestProfile measures a tiny model for a moment: what it prints, writes and gives
// as JSON is one and the same.
func TestProfile(t *testing.T) {
	out, cache := filepath.Join(t.TempDir(), "p.json"), t.TempDir()
	args := []string{"profile", "--preset", "tiny", "--threads", "1", "--cpu-weight-cache", cache, "--duration", "1s", "--max-context", "64", "--max-chunk", "16", "--max-sequences", "4", "--kv-memory", "16MiB", "--layers", "--out", out}
	got := run(t.Context(), "", nil, append(args, "--json")...)
	wantMeasured(t, got)
	if kept, err := os.ReadDir(cache); err != nil || len(kept) != 1 {
		t.Errorf("the weight cache has %v (%v)", kept, err)
	}
	var report struct {
		Profile *latency.Profile
		Points  []struct {
			Kind     string
			MedianMs float64 `json:"median_ms"`
			Repeats  int
		}
		Reach struct {
			PeakGFLOPS float64 `json:"peak_gflops"`
			ReadGBytes float64 `json:"read_gbytes_per_s"`
			OfPeak     float64 `json:"prefill_of_peak"`
		}
		Valid *bool
	}
	if err := json.Unmarshal([]byte(got.stdout), &report); err != nil {
		t.Fatal(err)
	}
	kinds := make(map[string]int)
	for _, p := range report.Points {
		kinds[p.Kind]++
		if p.MedianMs <= 0 || p.Repeats < 1 {
			t.Errorf("point %+v", p)
		}
	}
	if report.Valid != nil && *report.Valid != (got.status == 0) {
		t.Errorf("status %d, valid %v", got.status, *report.Valid)
	}
	if kinds["prefill"] == 0 || kinds["decode"] == 0 || report.Reach.PeakGFLOPS <= 0 || report.Reach.ReadGBytes <= 0 || report.Reach.OfPeak <= 0 || report.Valid == nil {
		t.Errorf("kinds %v, reach %+v, valid %v", kinds, report.Reach, report.Valid)
	}
	p := readProfile(t, out)
	if p.Model != "tiny" || p.Engine != "cpu/bf16/bf16/1" || p.Threads != 1 || p.Limits == nil || len(p.Layers["prefill"].LayersMs) != 2 || p.Decode[0].Terms != report.Profile.Decode[0].Terms {
		t.Errorf("wrote %+v", p)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(out), ".tandem-*")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	got = run(t.Context(), "", nil, args...)
	for _, says := range []string{"fitted ms", "GFLOP/s of", "layer 1", "written to " + out} {
		if !strings.Contains(got.stdout, says) {
			t.Errorf("the report does not say %q:\n%s", says, got.stdout)
		}
	}
}

// Without --model and --preset the bundled model is measured.
func TestProfileOfTheBundledModel(t *testing.T) {
	out := filepath.Join(t.TempDir(), "fable.json")
	got := run(t.Context(), "", nil, "profile", "--threads", "1", "--duration", "1s", "--max-context", "64", "--max-chunk", "16", "--max-sequences", "2", "--out", out)
	wantMeasured(t, got)
	if p := readProfile(t, out); p.Model != "fable" {
		t.Errorf("measured %s", p.Model)
	}
}

// distServeProfile is DistServe's, of a model called opt.
const distServeProfile = `{"opt":{"1":{"decoding_large_small_bs_threshold":95,"prefill":[18,0.1,7e-6],"decoding_smallbs":[20,6e-4,0.04],"decoding_largebs":[7,5e-4,0.16]}}}`

func TestProfileFromDistServe(t *testing.T) {
	dir := t.TempDir()
	file, out := filepath.Join(dir, "d.json"), filepath.Join(dir, "p.json")
	if err := os.WriteFile(file, []byte(distServeProfile), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := run(t.Context(), "", nil, "profile", "--from-distserve", file, "--entry", "opt", "--out", out); got.status != 0 {
		t.Fatalf("status %d: %s", got.status, got.stderr)
	}
	if p := readProfile(t, out); p.Model != "opt" || p.Prefill[0].PerSquareMs != 7e-6 || p.Decode[0].UpTo != 95 || p.Decode[1].PerTokenMs != 0.16 {
		t.Errorf("wrote %+v", p)
	}
	if got := run(t.Context(), "", nil, "profile", "--from-distserve", file, "--entry", "opt-2"); got.status != 1 || !strings.Contains(got.stderr, "choose one of opt") {
		t.Errorf("status %d: %s", got.status, got.stderr)
	}
}

func TestProfileRefuses(t *testing.T) {
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{
		{"--preset tiny --model x", 2, "both"},
		{"--from-distserve x", 2, "--entry"},
		{"--entry x", 2, "--from-distserve"},
		{"--threads -1", 2, "--threads"},
		{"--cpu-weights fp8", 2, "--cpu-weights"},
		{"--cpu-kv fp8", 2, "--cpu-kv"},
		{"--duration 1ms", 2, "--duration"},
		{"--max-context 1", 2, "--max-context"},
		{"--max-chunk 1", 2, "--max-chunk"},
		{"--max-sequences 0", 2, "--max-sequences"},
		{"--kv-memory auto", 2, "--kv-memory"},
		{"--preset huge", 2, "--preset"},
		{"--threads 9999", 2, "--threads"},
		{"--from-distserve /nowhere.json --entry x", 1, "no such file"},
		{"--model /nowhere", 1, "/nowhere"},
		{"--preset tiny --block-tokens 7", 1, "use 16"},
	} {
		got := run(t.Context(), "", nil, append([]string{"profile"}, strings.Fields(c.args)...)...)
		if got.status != c.status || !strings.Contains(got.stderr, c.says) {
			t.Errorf("%s: status %d, %s", c.args, got.status, got.stderr)
		}
	}
}
