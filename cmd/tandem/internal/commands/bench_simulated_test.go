package commands_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/contenders"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/processes"
	"github.com/tandem-serving/tandem/cmd/tandem/internal/commands"
	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// What was whole before an interruption is printed in the form that was asked for.
func TestBenchSimulatedInterrupted(t *testing.T) {
	result := &contenders.Result{Steps: []contenders.Step{{Rate: 3, Figures: make([]report.Figures, 2)}}, Capacity: []float64{4, 5}, Interrupted: true}
	for i := range result.Steps[0].Figures {
		result.Steps[0].Figures[i].Summary = *measure.Summarize(&record.Run{}, measure.Options{})
		result.Outcomes = append(result.Outcomes, &loadtest.Outcome{Report: &report.Report{}})
	}
	var asJSON, table strings.Builder
	for _, err := range []error{commands.PrintSimulated(&asJSON, result, 0.75, true), commands.PrintSimulated(&table, result, 0.75, false)} {
		if err == nil || !strings.Contains(err.Error(), "interrupted") {
			t.Errorf("the error is %v", err)
		}
	}
	var got struct {
		Rate        float64
		Interrupted bool
	}
	if err := json.Unmarshal([]byte(asJSON.String()), &got); err != nil || got.Rate != 3 || !got.Interrupted {
		t.Errorf("%v: %s", err, asJSON.String())
	}
	if !strings.Contains(table.String(), "| median of rounds") {
		t.Errorf("%s", table.String())
	}
}

// A cluster on virtual time takes the place of a mesh: two of them, one a tenth slower,
// differ by that, and one does not differ from itself.
func TestBenchSimulatedVirtual(t *testing.T) {
	write := func(name string, decode float64) string {
		file := filepath.Join(t.TempDir(), name)
		text := fmt.Sprintf(`{"version":1,"prefill":[{"base_ms":1,"per_token_ms":0.1}],"decode":[{"base_ms":%v,"per_token_ms":0.01}]}`, decode)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	for _, c := range []struct {
		decode float64 // of the other side
		differ bool
	}{{4, false}, {4.4, true}} {
		var sides []contenders.Contender
		for _, profile := range []string{write("a.json", 4), write("b.json", c.decode)} {
			cluster, err := contenders.VirtualPlan{Model: "tiny", Profile: profile, Mesh: processes.Plan{Prefill: 1, Decode: 1}, Mode: inferencev1.Mode_MODE_DISAGGREGATED}.New()
			if err != nil {
				t.Fatal(err)
			}
			sides = append(sides, contenders.Contender{Name: profile, Virtual: cluster})
		}
		load := loadtest.Config{}
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		load.RegisterRunFlags(fs)
		if err := fs.Parse([]string{"--duration=30s", "--prompt-tokens=40", "--output-tokens=20", "--seed=3"}); err != nil {
			t.Fatal(err)
		}
		progress, finish := commands.NewLoadProgress(io.Discard, false)
		r, err := contenders.Run(t.Context(), sides, contenders.Options{Load: load, Rates: []float64{40}, Rounds: 1}, progress)
		finish()
		if err != nil {
			t.Fatal(err)
		}
		differences := r.Differences()
		if len(differences) != 4 {
			t.Fatalf("%+v", differences)
		}
		for _, d := range differences {
			if differs := *d.Relative != 0; d.Latency == measure.TPOT && differs != c.differ || !c.differ && differs {
				t.Errorf("%v ms against 4: %+v", c.decode, d)
			}
		}
	}
}
