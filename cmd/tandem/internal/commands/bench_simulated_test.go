package commands_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/pair"
	"github.com/tandem-serving/tandem/cmd/tandem/internal/commands"
	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
)

// What was whole before an interruption is printed in the form that was asked for.
func TestBenchSimulatedInterrupted(t *testing.T) {
	result := &pair.Result{Steps: []pair.Step{{Rate: 3}}, Capacity: [2]float64{4, 5}, Interrupted: true}
	for i := range result.Steps[0].Figures {
		result.Steps[0].Figures[i].Summary = *measure.Summarize(&record.Run{}, measure.Options{})
		result.Outcomes[i] = &loadtest.Outcome{Report: &report.Report{}}
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
