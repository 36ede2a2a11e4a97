package overload

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// WriteTable writes the result for people.
func (r *Result) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, "capacity %.3g requests/s, goodput there %.3g/s, for %s\n\n", r.CapacityRPS, r.GoodputRPS, r.SLO)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "TIMES\tOFFERED/S\tGOODPUT/S\tOF CAPACITY'S\tREFUSED IN, P99 MS\tADMITTED, SHORTEST QUARTER TO LONGEST")
	for _, s := range r.Steps {
		refuse, admitted := "n/a", "n/a"
		if s.RefuseMsP99 != nil {
			refuse = fmt.Sprintf("%.1f", *s.RefuseMsP99)
		}
		if a := s.AdmittedByLengthQuartile; a != nil {
			admitted = fmt.Sprintf("%.0f%% %.0f%% %.0f%% %.0f%%", 100*a[0], 100*a[1], 100*a[2], 100*a[3])
		}
		fmt.Fprintf(table, "%g\t%.1f\t%.1f\t%.0f%%\t%s\t%s\n", s.Times, s.OfferedRPS, s.GoodputRPS, 100*s.GoodputOfCapacity, refuse, admitted)
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
