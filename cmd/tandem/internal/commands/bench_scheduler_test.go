package commands_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// policies of what was printed.
func policies(t *testing.T, stdout string, n int) []map[string]any {
	t.Helper()
	rows, _ := last(t, stdout)["policies"].([]any)
	if len(rows) != n {
		t.Fatalf("%d policies, want %d: %s", len(rows), n, stdout)
	}
	var each []map[string]any
	for _, row := range rows {
		said, _ := row.(map[string]any)
		each = append(each, said)
	}
	return each
}

func TestBenchScheduler(t *testing.T) {
	args := strings.Fields("bench scheduler --requests 60 --step-budget 0s,20ms --chunk-tokens 512,2048 --output-share 1,0.5")
	got := run(t.Context(), "", nil, append(args, "--json")...)
	if got.status != 0 {
		t.Fatalf("%+v", got)
	}
	rows := policies(t, got.stdout, 8)
	for i, row := range rows {
		if row["requests"] != 60.0 || row["finished"] != 60.0 || row["scheduler"] == nil {
			t.Errorf("%d: %v", i, row)
		}
	}
	for i, want := range []struct{ budget, chunk, share float64 }{{0, 512, 1}, {20, 512, 1}, {0, 2048, 1}, {20, 2048, 1}, {0, 512, 0.5}} {
		if row := rows[i]; row["step_budget_ms"] != want.budget || row["chunk_tokens"] != want.chunk || row["output_share"] != want.share {
			t.Errorf("%d: %v, want %v", i, row, want)
		}
	}
	got = run(t.Context(), "", nil, append(args, "--virtual")...)
	if got.status != 0 || strings.Count(got.stdout, "budget 20ms, chunks of 512, share 0.5") != 5 || !strings.Contains(got.stdout, "virtual time, seed 1") ||
		!strings.Contains(got.stdout, "p99 takes 368, p99.9 takes 3688") { // of 60 requests it tells neither
		t.Errorf("for people: %+v", got)
	}
}

func TestBenchSchedulerWithALongPrompt(t *testing.T) {
	args := strings.Fields("bench scheduler --scenario long-prompt --long-prompt 4096 --before 20")
	got := run(t.Context(), "", nil, append(args, "--decodes", "60", "--json")...)
	if got.status != 0 {
		t.Fatalf("%+v", got)
	}
	rows := policies(t, got.stdout, 2)
	free, _ := rows[0]["long_prompt"].(map[string]any)
	bounded, _ := rows[1]["long_prompt"].(map[string]any)
	if free["within_budget"] != nil || bounded["within_budget"] != true || bounded["rise_p99_ms"] == nil || free["itl_during_ms"] == nil {
		t.Errorf("%v and %v", free, bounded)
	}
	if got := run(t.Context(), "", nil, args...); got.status != 0 || !strings.Contains(got.stdout, "p99 rises by") || !strings.Contains(got.stdout, "p99 takes 368") {
		t.Errorf("for people: %+v", got)
	}
}

func TestBenchSchedulerWithAProfile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "profile.json")
	if err := os.WriteFile(file, []byte(`{"version":1,"model":"mine","prefill":[{"base_ms":5,"per_token_ms":0.1}],"decode":[{"base_ms":5,"per_token_ms":0.1}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	got := run(t.Context(), "", nil, "bench", "scheduler", "--requests", "10", "--profile", file, "--json")
	if got.status != 0 || last(t, got.stdout)["model"] != "mine" {
		t.Errorf("%+v", got)
	}
}

func TestBenchSchedulerOnTheEngine(t *testing.T) {
	args := strings.Fields("bench scheduler --engine --preset tiny --layers 1 --threads 1 --requests 8 --rate 200 --short-prompt 20 --long-prompt 100 --output 10 --max-tokens 20 --step-budget 0s,5ms")
	got := run(t.Context(), "", nil, append(args, "--json")...)
	if got.status != 0 {
		t.Fatalf("%+v", got)
	}
	said := last(t, got.stdout)
	if said["clock"] != "real" || said["model"] != "tiny-1-layers" || said["threads"] != 1.0 || said["sequences"] != 64.0 || said["batch_tokens"] != 512.0 {
		t.Errorf("%s", got.stdout)
	}
	for _, row := range policies(t, got.stdout, 2) {
		if row["finished"] != 8.0 || row["between_steps_us"] == nil || row["scheduler"] != nil {
			t.Errorf("%v", row)
		}
	}
	if got := run(t.Context(), "", nil, args...); got.status != 0 || !strings.Contains(got.stdout, "real time: tiny-1-layers on") || !strings.Contains(got.stdout, "between steps") {
		t.Errorf("for people: %+v", got)
	}
}

func TestBenchSchedulerRefuses(t *testing.T) {
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{
		{"--virtual --engine", 2, "--virtual is for virtual time"},
		{"--engine --profile x", 2, "--profile is for virtual time"},
		{"--engine --jitter 0.1", 2, "--jitter is for virtual time"},
		{"--threads 1", 2, "--threads is for the CPU engine: give --engine"},
		{"--model x", 2, "--model is for the CPU engine"},
		{"--profile x --base-ms 1", 2, "--base-ms is set by --profile"},
		{"--profile /nowhere", 1, "/nowhere"},
		{"--scenario long-prompt --rate 5", 2, "--rate is for --scenario mix"},
		{"--decodes 4", 2, "--decodes is for --scenario long-prompt"},
		{"--scenario other", 2, "--scenario"},
		{"--requests 0", 2, "--requests"},
		{"--rate 0", 2, "--rate"},
		{"--long-share 2", 2, "--long-share"},
		{"--max-tokens 10", 2, "--max-tokens"},
		{"--blocks 10", 2, "--blocks"},
		{"--chunk-tokens 100", 2, "--chunk-tokens"},
		{"--step-budget -1s", 2, "--step-budget"},
		{"--output-share 0", 2, "--output-share"},
		{"--step-budget 1s,2s,3s,4s,5s,6s,7s --output-share 1,0.5,0.2,0.1,0.05", 2, "policies"},
		{"--jitter -1", 2, "--jitter"},
		{"--per-token-ms -1", 2, "--per-token-ms"},
		{"--base-ms 0 --per-token-ms 0 --per-square-ms 0 --per-context-token-ms 0", 2, "all terms are 0"},
		{"--engine --limit 0s", 2, "--limit"},
		{"--engine --threads -1", 2, "--threads"},
		{"--engine --preset huge", 2, "--preset"},
		{"--engine --preset tiny --model x", 2, "--model does not go with --preset"},
		{"--engine --layers 2 --model x", 2, "--model does not go with --preset or --layers"},
		{"--layers 2", 2, "--layers is for the CPU engine"},
		{"--engine --layers 17", 2, "16, the layers of bench-200m"},
		{"--engine --preset tiny", 2, "512 that tiny takes"},
		{"--engine --model /nowhere", 1, "/nowhere"},
		{"--engine --model " + bundled + " --long-prompt 100000 --blocks 10000", 1, "fable takes"},
		{"--engine --preset tiny --long-prompt 10 --short-prompt 10 --output 2 --max-tokens 3 --limit 1ns", 1, "--limit"},
		{"--engine --preset tiny --long-prompt 10 --short-prompt 10 --output 2 --max-tokens 3 --isa mmx", 1, "mmx"},
	} {
		got := run(t.Context(), "", nil, append([]string{"bench", "scheduler"}, strings.Fields(c.args)...)...)
		checkFailure(t, got, c.status, c.says)
	}
}
