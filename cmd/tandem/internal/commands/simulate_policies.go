package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/simulate"
)

// policyRow is what a routing policy made of the traffic.
type policyRow struct {
	Policy string `json:"policy"`
	// GoodputRPS is the requests a second that met the SLO, and Attainment their share.
	GoodputRPS float64 `json:"goodput_rps"`
	Attainment float64 `json:"slo_attainment"`
	Completed  int     `json:"completed"`
	Rejected   int     `json:"rejected"`
	// Percentiles in milliseconds; nil if there are too few requests.
	TTFTP50 *float64 `json:"ttft_p50_ms"`
	TTFTP99 *float64 `json:"ttft_p99_ms"`
	TPOTP99 *float64 `json:"tpot_p99_ms"`
}

// policyComparison is what `simulate --policies` prints: the most goodput first.
type policyComparison struct {
	SLO      string      `json:"slo"`
	Policies []policyRow `json:"policies"`
}

// comparePolicies sends the same traffic to the cluster under each routing policy.
func comparePolicies(ctx context.Context, config loadtest.Config, s simulation, live loadtest.Progress) (policyComparison, error) {
	var table policyComparison
	for _, name := range routing.Policies() {
		s.Change = func(c *simulate.Config) { c.Routing.Policy = name }
		config.Drive = s.Drive
		out, err := loadtest.Run(ctx, config, s, policyProgress{live, name})
		if err != nil {
			return table, err
		}
		if out.Report.Interrupted {
			return table, &exitError{status: exitInterrupted, message: "interrupted: not all policies were simulated"}
		}
		f := &out.Report.Figures
		table.SLO = f.SLO
		table.Policies = append(table.Policies, policyRow{
			Policy: name, GoodputRPS: f.Goodput, Attainment: f.SLOAttainment, Completed: f.Completed, Rejected: f.Rejected,
			TTFTP50: f.TTFT.Percentile("p50"), TTFTP99: f.TTFT.Percentile("p99"), TPOTP99: f.TPOT.Percentile("p99"),
		})
	}
	slices.SortStableFunc(table.Policies, func(a, b policyRow) int { return cmp.Compare(b.GoodputRPS, a.GoodputRPS) })
	return table, nil
}

// result is the error that the exit status shows: no policy had a request completed.
func (t policyComparison) result() error {
	for _, row := range t.Policies {
		if row.Completed > 0 {
			return nil
		}
	}
	return errors.New("no request was completed, whatever the policy: without --policies, the report says what became of them")
}

// policyProgress says which policy a run is of.
type policyProgress struct {
	loadtest.Progress
	policy string
}

// Begin says that a run begins.
func (p policyProgress) Begin(what string, total time.Duration) {
	p.Progress.Begin(what+", policy "+p.policy, total)
}

func printPolicies(w io.Writer, t policyComparison) error {
	fmt.Fprintf(w, "goodput for %s\n\n", t.SLO)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "POLICY\tGOODPUT/S\tMET\tCOMPLETED\tREJECTED\tTTFT P50 MS\tTTFT P99 MS\tTPOT P99 MS")
	ms := func(v *float64) string {
		if v == nil {
			return "n/a"
		}
		return fmt.Sprintf("%.1f", *v)
	}
	for _, r := range t.Policies {
		fmt.Fprintf(table, "%s\t%.2f\t%.1f%%\t%d\t%d\t%s\t%s\t%s\n",
			r.Policy, r.GoodputRPS, 100*r.Attainment, r.Completed, r.Rejected, ms(r.TTFTP50), ms(r.TTFTP99), ms(r.TPOTP99))
	}
	return table.Flush()
}
