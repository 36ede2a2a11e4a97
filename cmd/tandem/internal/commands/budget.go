package commands

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/loadtest/measure"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// budgetJSON is what `budget --json` prints.
type budgetJSON struct {
	WindowSeconds float64          `json:"window_seconds"`
	Requests      uint64           `json:"requests"`
	Failed        uint64           `json:"failed"`
	Breaches      uint64           `json:"breaches"`
	Stages        []budgetLineJSON `json:"stages"`
	// Parts of stages, of the requests that had them: fetch, of prefill.
	Parts    []budgetLineJSON    `json:"parts"`
	Totals   []budgetLineJSON    `json:"totals"`
	Overruns []budgetOverrunJSON `json:"overruns"`
}

// budgetLineJSON is one stage or total, in milliseconds.
type budgetLineJSON struct {
	Name     string `json:"name"`
	PerToken bool   `json:"per_token"`
	// DeclaredMs is null where nothing is declared.
	DeclaredMs *float64 `json:"declared_ms"`
	Count      uint64   `json:"count"`
	// SpentMs is null where nothing was measured.
	SpentMs  *measure.Distribution `json:"spent_ms"`
	Breaches uint64                `json:"breaches"`
	// BreachShare is of all requests that exceeded their budget, 0 to 1.
	BreachShare float64 `json:"breach_share"`
}

// budgetOverrunJSON is the request at a percentile that exceeded what is declared.
type budgetOverrunJSON struct {
	Name       string  `json:"name"`
	Percentile float64 `json:"percentile"`
	SpentMs    float64 `json:"spent_ms"`
	DeclaredMs float64 `json:"declared_ms"`
	// Stage broke it.
	Stage        string  `json:"stage"`
	StageSpentMs float64 `json:"stage_spent_ms"`
	// StageDeclaredMs is null where nothing is declared.
	StageDeclaredMs *float64 `json:"stage_declared_ms"`
	RequestID       string   `json:"request_id"`
	Text            string   `json:"text"`
}

func newBudgetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "budget",
		Short: "Compare recent requests with the latency budget, and name the stage that broke it",
		Long: fmt.Sprintf(`Prints the declared budget and what the requests of the last minutes spent, for each
stage of a request and for the totals (ttft, tpot, e2e). For requests that fetched KV
from a block store, it also prints the part of prefill that the fetch took.

A request over its budget counts once, for the stage that broke it: of the stages that
are part of an exceeded total, the one that is furthest over its declared time. BREACHES
counts those requests of each stage, and of each total that they exceeded; the percentage
is of all requests over the budget.

Declare a budget to the router, with flags such as --budget-ttft 500ms, or in its
configuration file:

  budget:
    ttft: 500ms
    queue: 50ms

decode and tpot are times for each token after the first. A dash stands for a
percentile of too few requests: p99 takes %d of them, p99.9 takes %d.`, needs(.99), needs(.999)),
		Example: "  tandem budget\n  tandem budget --json",
		Args:    exactly(),
	}
	router := addControl(cmd)
	asJSON := addJSON(cmd, "print one JSON object: window_seconds, requests, failed, breaches, stages, parts, totals, overruns")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		response, err := ask(router, controlv1.NewControlClient, controlv1.ControlClient.GetBudget, &controlv1.GetBudgetRequest{})
		if err != nil {
			return err
		}
		return show(cmd, *asJSON, budgetOf(response), func(w io.Writer, b budgetJSON) error {
			printBudget(w, cmd, b, router.commandLine("explain"))
			return nil
		})
	}
	return cmd
}

func budgetOf(response *controlv1.GetBudgetResponse) budgetJSON {
	budget := budgetJSON{
		WindowSeconds: response.GetWindow().AsDuration().Seconds(),
		Requests:      response.GetRequests(), Failed: response.GetFailed(), Breaches: response.GetBreaches(),
		Stages: []budgetLineJSON{}, Parts: []budgetLineJSON{}, Totals: []budgetLineJSON{}, Overruns: []budgetOverrunJSON{},
	}
	lineOf := func(l *controlv1.BudgetLine) budgetLineJSON {
		line := budgetLineJSON{Name: l.GetName(), PerToken: l.GetPerToken(), Count: l.GetCount(), Breaches: l.GetBreaches()}
		if l.Declared != nil {
			line.DeclaredMs = new(milliseconds(l.GetDeclared().AsDuration()))
		}
		if n := l.GetCount(); n > 0 {
			at := func(q float64, ns int64) *float64 { return enough(q, n, milliseconds(ns)) }
			line.SpentMs = &measure.Distribution{
				Count: int64(n), Mean: milliseconds(l.GetSumNs()) / float64(n), P50: at(.5, l.GetP50Ns()), P90: at(.9, l.GetP90Ns()),
				P95: at(.95, l.GetP95Ns()), P99: at(.99, l.GetP99Ns()), P999: at(.999, l.GetP999Ns()), Max: new(milliseconds(l.GetMaxNs())),
			}
		}
		if all := response.GetBreaches(); all > 0 {
			line.BreachShare = float64(l.GetBreaches()) / float64(all)
		}
		return line
	}
	counts := map[string]uint64{}
	for _, l := range response.GetLines() {
		counts[l.GetName()] = l.GetCount()
		if l.GetTotal() {
			budget.Totals = append(budget.Totals, lineOf(l))
		} else {
			budget.Stages = append(budget.Stages, lineOf(l))
		}
	}
	for _, l := range response.GetParts() {
		budget.Parts = append(budget.Parts, lineOf(l))
	}
	for _, o := range response.GetOverruns() {
		overrun := budgetOverrunJSON{
			Name: o.GetName(), Percentile: o.GetPercentile(), SpentMs: milliseconds(o.GetSpentNs()), DeclaredMs: milliseconds(o.GetDeclaredNs()),
			Stage: o.GetStage(), StageSpentMs: milliseconds(o.GetStageSpentNs()), RequestID: o.GetRequestId(),
		}
		if o.GetStageDeclaredNs() > 0 {
			overrun.StageDeclaredMs = new(milliseconds(o.GetStageDeclaredNs()))
		}
		overrun.Text = overrunText(overrun, counts[overrun.Name])
		budget.Overruns = append(budget.Overruns, overrun)
	}
	return budget
}

// overrunText names the request at a percentile only if that is one of so many.
func overrunText(o budgetOverrunJSON, count uint64) string {
	what := "p" + strconv.FormatFloat(o.Percentile, 'f', -1, 64)
	if q := o.Percentile / 100; q >= 1 || count < needs(q) {
		what = "slowest"
		if place := count - uint64(math.Ceil(q*float64(count)-1e-9)) + 1; q < 1 && place > 1 && place <= count {
			what = fmt.Sprintf("number %d of the slowest", place)
		}
	}
	text := fmt.Sprintf("%s %s %s of %s", what, spaced(o.Name), msText(o.SpentMs), msText(o.DeclaredMs))
	if o.Stage == o.Name {
		return text
	}
	text += fmt.Sprintf(": %s %s", spaced(o.Stage), msText(o.StageSpentMs))
	if o.StageDeclaredMs == nil {
		return text + ", which has no declared limit"
	}
	return text + " of " + msText(*o.StageDeclaredMs)
}

func spaced(name string) string { return strings.ReplaceAll(name, "_", " ") }

// printBudget writes explain, a command line, before the id of each request that it names.
func printBudget(w io.Writer, cmd *cobra.Command, b budgetJSON, explain string) {
	fmt.Fprintf(w, "the last %v: %s ended well, %d over the budget; %d failed, not in the table\n\n",
		time.Duration(b.WindowSeconds*float64(time.Second)), counted(b.Requests, "request"), b.Breaches, b.Failed)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	breached := "BREACHES"
	if b.Breaches > 0 {
		breached += fmt.Sprintf(" OF %d", b.Breaches)
	}
	fmt.Fprintf(table, "MS\tDECLARED\tP50\tP90\tP95\tP99\tP99.9\tMAX\t%s\t\n", breached)
	declared := false
	var dashes tooFew
	// What nobody fetched is no news.
	parts := slices.DeleteFunc(slices.Clone(b.Parts), func(l budgetLineJSON) bool { return l.Count == 0 })
	for _, l := range slices.Concat(b.Stages, parts, b.Totals) {
		name, limit, breaches := l.Name, "-", "-"
		if l.PerToken {
			name += " (a token)"
		}
		if l.Name == "fetch" {
			name += " (in prefill)"
		}
		if l.DeclaredMs != nil {
			limit, declared = fmt.Sprintf("%.2f", *l.DeclaredMs), true
		}
		if l.Breaches > 0 {
			breaches = fmt.Sprintf("%d (%.0f%%)", l.Breaches, 100*l.BreachShare)
		}
		fmt.Fprintf(table, "%s\t%s\t", spaced(name), limit)
		if s := l.SpentMs; s != nil {
			for _, p := range []struct {
				q  float64
				ms *float64
			}{{.5, s.P50}, {.9, s.P90}, {.95, s.P95}, {.99, s.P99}, {.999, s.P999}} {
				fmt.Fprintf(table, "%s\t", dashes.cell(p.q, "%.2f", p.ms))
			}
			fmt.Fprintf(table, "%.2f\t", *s.Max)
		} else {
			fmt.Fprint(table, strings.Repeat("-\t", 6))
		}
		fmt.Fprintf(table, "%s\t\n", breaches)
	}
	_ = table.Flush() // into memory
	if reason := dashes.reason(); reason != "" {
		fmt.Fprintln(w, reason)
	}
	fmt.Fprintln(w)
	for _, o := range b.Overruns {
		fmt.Fprintf(w, "%s (%s %s)\n", o.Text, explain, o.RequestID)
	}
	switch {
	case !declared:
		fmt.Fprintln(w, asCalled(cmd, "no budget is declared: start the router with flags such as --budget-ttft 500ms; 'tandem up --help-all' lists them"))
	case len(b.Overruns) == 0 && b.Breaches > 0:
		fmt.Fprintln(w, "the requests that broke it are no longer kept: see BREACHES")
	case len(b.Overruns) == 0 && b.Requests > 0:
		fmt.Fprintln(w, "the budget holds")
	}
}
