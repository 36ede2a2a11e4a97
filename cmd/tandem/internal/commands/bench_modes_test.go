package commands_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// capacity is what bench modes found of one contender.
type capacity struct {
	RPS    *float64    `json:"capacity_rps"`
	CI     *[2]float64 `json:"ci"`
	Rounds []float64   `json:"rounds"`
}

// The JSON has the keys of the contract, and the search ends with a capacity of each.
func TestBenchModesVirtual(t *testing.T) {
	onVirtualTime(t)
	page := filepath.Join(t.TempDir(), "page.html")
	args := []string{
		"bench", "modes", "--virtual", "--model=tiny", "--profile=../../../../docs/profiles/h200-bench-8b.json", "--duration=1s", "--warmup=200ms", "--rounds=2", "--seed=3", "--mix=1024/16", "--mix=256/64",
		"--report", page, "--json",
	}
	got := run(t.Context(), "", nil, args...)
	if got.status != 0 {
		t.Fatalf("status %d: %s", got.status, got.stderr)
	}
	var all struct {
		Mixes []struct {
			Name, SLO, Better               string
			Aggregated, Disaggregated, Auto *capacity
			AutoOfBetter                    *float64    `json:"auto_of_better"`
			AutoOfBetterCI                  *[2]float64 `json:"auto_of_better_ci"`
			Confidence                      float64
		}
	}
	if err := json.Unmarshal([]byte(got.stdout), &all); err != nil || len(all.Mixes) != 2 || all.Mixes[0].Name != "1024/16" || all.Mixes[1].Name != "256/64" {
		t.Fatalf("%v: %s", err, got.stdout)
	}
	for _, m := range all.Mixes {
		for _, c := range []*capacity{m.Aggregated, m.Disaggregated, m.Auto} {
			if c == nil || c.RPS == nil || c.CI == nil || len(c.Rounds) != 2 || c.CI[0] > *c.RPS || c.CI[1] < *c.RPS || c.CI[0] <= 0 {
				t.Fatalf("%s: %+v in %s", m.Name, c, got.stdout)
			}
		}
		if m.AutoOfBetter == nil || m.AutoOfBetterCI == nil || m.Confidence != 0.5 || m.Better == "" || !strings.HasPrefix(m.SLO, "ttft:p90<") || !strings.Contains(m.SLO, ",tpot:p90<") {
			t.Errorf("%+v", m)
		}
		file := strings.TrimSuffix(page, ".html") + "-" + strings.ReplaceAll(m.Name, "/", "-") + ".html"
		if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "<html") {
			t.Errorf("%v, %d bytes", err, len(text))
		}
	}
}

// For people it prints a row for each mix, the same for the same seed.
func TestBenchModesTable(t *testing.T) {
	onVirtualTime(t)
	args := strings.Fields("bench modes --virtual --model=tiny --duration=1s --warmup=200ms --rounds=1 --seed=3 " +
		"--prompt-tokens=400 --output-tokens=4 --slo=ttft:p90<100ms --workers=4 --prefill=1")
	got, again := run(t.Context(), "", nil, args...), run(t.Context(), "", nil, args...)
	if got.stdout != again.stdout {
		t.Errorf("%s\nand then\n%s", got.stdout, again.stdout)
	}
	if got.status != 0 || !strings.Contains(got.stdout, "\n| 400/4 | ttft:p90<100ms | ") || !strings.Contains(got.stdout, "4 workers each") {
		t.Errorf("%+v", got)
	}
}

// A mix that cannot be measured takes none of those before it away.
func TestBenchModesFailsLate(t *testing.T) {
	onVirtualTime(t)
	out := filepath.Join(t.TempDir(), "out.json")
	args := strings.Fields("bench modes --virtual --model=tiny --duration=1s --warmup=200ms --rounds=1 --seed=3 --mix=1024/16 --mix=256/64 --request-timeout=200ms --out")
	got := run(t.Context(), "", nil, append(args, out)...)
	text, err := os.ReadFile(out)
	if err != nil || !strings.Contains(string(text), `"name": "1024/16"`) || !strings.Contains(string(text), `"interrupted": true`) {
		t.Errorf("%v: %s", err, text)
	}
	if !strings.Contains(got.stdout, "\n| 1024/16 | ") || !strings.Contains(got.stdout, "It ended early") {
		t.Error(got.stdout)
	}
	if got.status != 1 || !strings.Contains(got.stderr, "tandem: mix 256/64: aggregated: no request of the ") {
		t.Errorf("status %d: %s", got.status, got.stderr)
	}
}

// A preset asks for ten minutes at least, unless a duration is given.
func TestBenchModesDurationWithPreset(t *testing.T) {
	onVirtualTime(t)
	got := run(t.Context(), "", nil, strings.Fields("bench modes --virtual --model=tiny --preset=mlperf:llama-3.1-8b-server --duration=1s "+
		"--warmup=200ms --rates=20 --mix=32/256 --json")...)
	if got.status != 0 || !strings.Contains(got.stdout, `"window_s": 1,`) || strings.Contains(got.stdout, `"window_s": 600,`) {
		t.Errorf("status %d: %s", got.status, got.stderr)
	}
}

func TestBenchModesErrors(t *testing.T) {
	for _, c := range []struct{ flags, want string }{
		{"--mix=azur", `--mix: "azur" is none of 1024/16, 256/64, 32/256, azure`},
		{"--mix=azure --prompt-tokens=5", "--mix sets what requests are like"},
		{"--rates=1 --mix=azure --mix=32/256", "--rates are of one mix"},
		{"--slo-scale=10", "--slo-scale: "},
		{"--slo-scale=10,1", "--slo-scale: "},
		{"--slo=ttft", "--slo: "},
		{"--workers=1", "--workers"},
		{"--workers=4 --prefill=4", "of 4 workers, 1 to 3 can prefill"},
		{"--engine=cuda", "--engine"},
		{"--profile=x.json", "--profile is for the simulated engine"},
		{"--rounds=-1", "--rounds"},
	} {
		checkFailure(t, run(t.Context(), "", nil, append([]string{"bench", "modes"}, strings.Fields(c.flags)...)...), 2, c.want)
	}
}
