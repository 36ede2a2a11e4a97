package overload

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// WriteTable writes the result for people.
func (r *Result) WriteTable(w io.Writer) error {
	if r.CapacityRPS == nil {
		_, err := fmt.Fprintf(w, "no capacity was found yet, for %s\n", r.SLO)
		return err
	}
	fmt.Fprintf(w, "capacity %.3g requests/s, goodput there %.3g/s, for %s\n\n", *r.CapacityRPS, *r.GoodputRPS, r.SLO)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "TIMES\tOFFERED/S\tGOODPUT/S\tOF CAPACITY'S\tREFUSED IN, P99 MS\tADMITTED, SHORTEST QUARTER TO LONGEST")
	for _, s := range r.Steps {
		admitted := "n/a"
		if a := s.AdmittedByLengthQuartile; a != nil {
			admitted = fmt.Sprintf("%.0f%% %.0f%% %.0f%% %.0f%%", 100*a[0], 100*a[1], 100*a[2], 100*a[3])
		}
		fmt.Fprintf(table, "%g\t%s\t%s\t%s\t%s\t%s\n", s.Times, known("%.1f", s.OfferedRPS, 1), known("%.1f", s.GoodputRPS, 1),
			known("%.0f%%", s.GoodputOfCapacity, 100), known("%.1f", s.RefuseMsP99, 1), admitted)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, s := range r.Steps {
		if s.Client != "" {
			fmt.Fprintf(w, "\nat %g times, there are no figures of the server: %s\n", s.Times, s.Client)
		}
	}
	if r.RecoveryUnknown != "" {
		fmt.Fprintf(w, "\nhow soon latencies were as before after a burst of %v is not known: %s\n", burst, r.RecoveryUnknown)
	}
	if r.RecoveryMs != nil {
		fmt.Fprintf(w, "\n%.0f ms after a burst of %v, latencies were as before it; worse quarters of a second: %.0f%% before the burst, %.0f%% after that\n", *r.RecoveryMs, burst, 100*r.WorseBefore, 100*r.WorseAfter)
	}
	return nil
}

// known formats a figure in units, n/a if there is none.
func known(format string, figure *float64, units float64) string {
	if figure == nil {
		return "n/a"
	}
	return fmt.Sprintf(format, units**figure)
}
