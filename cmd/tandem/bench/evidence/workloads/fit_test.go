package workloads_test

import (
	"bytes"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/evidence/workloads"
	"github.com/tandem-serving/tandem/loadtest/workload/trace"
)

var (
	traces = flag.String("traces", os.Getenv("TANDEM_TRACES"), "folder with the public traces that the fits are made from")
	update = flag.Bool("update", false, "write the fits to docs/profiles")
)

const profiles = "../../../../../docs/profiles"

// recorded is a file in the folder of traces.
func recorded(t *testing.T, name string) string {
	t.Helper()
	if *traces == "" {
		t.Skip("needs the public traces: pass -traces DIR (docs/load-testing.md says where they are)")
	}
	return filepath.Join(*traces, name)
}

const about = `# Distributions fitted to public traces, for "tandem bench evidence". They are fitted again by
#   go test ./cmd/tandem/bench/evidence/workloads -run Fits -traces DIR -update
# where DIR has AzureLLMInferenceTrace_conv.csv (Azure/AzurePublicDataset, CC-BY 4.0) and
# conversation_trace.jsonl (kvcache-ai/Mooncake, Apache-2.0). Lists are quantiles: the means of
# equal shares of the values, the least first.
`

// A trace that cannot be opened is named with the flag that its folder came from.
func TestTraceThatIsNotThere(t *testing.T) {
	if _, err := workloads.ReadTrace("/nowhere/trace.csv"); err == nil || !strings.HasPrefix(err.Error(), "--traces: open /nowhere/trace.csv: ") {
		t.Errorf("error %v", err)
	}
}

// The committed fits are those that the traces give.
func TestFitsOfTraces(t *testing.T) {
	azure, err := workloads.ReadTrace(recorded(t, "AzureLLMInferenceTrace_conv.csv"))
	if err != nil {
		t.Fatal(err)
	}
	mooncake, err := workloads.ReadTrace(recorded(t, "conversation_trace.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	want := &workloads.File{
		AzureConversation: workloads.FitIndependent(azure, 0), AzureConversation2048: workloads.FitIndependent(azure, 2048),
		MooncakeConversation: workloads.FitConversations(mooncake),
	}
	path := filepath.Join(profiles, workloads.FileName)
	if *update {
		text, err := yaml.Marshal(want)
		if err == nil {
			err = os.WriteFile(path, append([]byte(about), text...), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := workloads.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the committed fits differ (-fitted, +committed); run the test with -update:\n%s", diff)
	}
	t.Logf("ideal share of cached tokens: %.4f", workloads.Ideal(mooncake))
}

// The committed step times are those that Splitwise's measurements give.
func TestFitsOfSplitwise(t *testing.T) {
	path := recorded(t, "splitwise_perf_model.csv")
	for name, device := range map[string]string{"a100-llama2-70b-tp8.json": "a100-80gb", "h100-llama2-70b-tp8.json": "h100-80gb"} {
		measured, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		p, err := workloads.FitSplitwise(bytes.NewReader(measured), "llama2-70b", device, 8)
		if err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		if err := p.Write(&text); err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(filepath.Join(profiles, name), text.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		committed, err := os.ReadFile(filepath.Join(profiles, name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(text.String(), string(committed)); diff != "" {
			t.Errorf("%s differs (-fitted, +committed); run the test with -update:\n%s", name, diff)
		}
	}
}

// What is drawn from a fit is what was fitted: lengths within a few percent, and as much that
// requests share.
func TestDrawnTraces(t *testing.T) {
	fits, err := workloads.Read(filepath.Join(profiles, workloads.FileName))
	if err != nil {
		t.Fatal(err)
	}
	var csv, lines bytes.Buffer
	if err := fits.AzureConversation.WriteTrace(&csv, 20000, 1); err != nil {
		t.Fatal(err)
	}
	if err := fits.MooncakeConversation.WriteTrace(&lines, 12000, 1); err != nil {
		t.Fatal(err)
	}
	near := func(what string, got, want, within float64) {
		if math.Abs(got/want-1) > within {
			t.Errorf("%s: %.4g, want %.4g within %.0f%%", what, got, want, 100*within)
		}
	}
	azure := entries(t, csv.String())
	near("prompts", mean(azure, func(e trace.Entry) int { return e.PromptTokens }), 1155, 0.05)
	near("answers", mean(azure, func(e trace.Entry) int { return e.OutputTokens }), 211, 0.05)
	near("rate", float64(len(azure))/azure[len(azure)-1].At.Seconds(), fits.AzureConversation.RatePerSecond, 0.05)
	again := workloads.FitIndependent(azure, 0)
	near("median of the fifth bin", again.Bins[4].Prompt.At(0.5), fits.AzureConversation.Bins[4].Prompt.At(0.5), 0.05)

	mooncake := entries(t, lines.String())
	near("prompts", mean(mooncake, func(e trace.Entry) int { return e.PromptTokens }), 12035, 0.15)
	near("answers", mean(mooncake, func(e trace.Entry) int { return e.OutputTokens }), 343, 0.05)
	near("ideal share of cached tokens", workloads.Ideal(mooncake), 0.374, 0.15)
	for i, e := range mooncake {
		if want := (e.PromptTokens + trace.BlockTokens - 1) / trace.BlockTokens; len(e.Blocks) != want {
			t.Fatalf("request %d has %d blocks for %d tokens", i, len(e.Blocks), e.PromptTokens)
		}
	}
}

func entries(t *testing.T, text string) (all []trace.Entry) {
	t.Helper()
	r, err := trace.NewReader(strings.NewReader(text), "drawn", trace.Auto)
	if err != nil {
		t.Fatal(err)
	}
	for {
		e, err := r.Next()
		if err != nil {
			return all
		}
		all = append(all, e)
	}
}

func mean(all []trace.Entry, of func(trace.Entry) int) (m float64) {
	for _, e := range all {
		m += float64(of(e)) / float64(len(all))
	}
	return m
}

// Measurements that follow the formula are fitted exactly; what cannot be read is refused.
func TestFitSplitwise(t *testing.T) {
	const header = "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel\n"
	rows := "m,gpu,128,1,128,22.8,20.192,8\nm,gpu,256,1,128,35.6,20.32,8\nm,gpu,1024,1,128,112.4,21.088,8\nm,gpu,512,4,128,214.8,22.604,8\nm,gpu,512,16,128,829.2,30.716,8\n"
	p, err := workloads.FitSplitwise(strings.NewReader(header+rows), "m", "gpu", 8)
	if err != nil {
		t.Fatal(err)
	}
	for kind, e := range p.Errors {
		if e.Max > 0.01 {
			t.Errorf("%s: errors up to %.3g: %+v", kind, e.Max, p)
		}
	}
	for _, wrong := range []string{"", "model\n", header, header + "m,gpu,x,1,1,1,1,8\n"} {
		if _, err := workloads.FitSplitwise(strings.NewReader(wrong), "m", "gpu", 8); err == nil {
			t.Errorf("%q was fitted", wrong)
		}
	}
}
