package compare

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// WriteTable writes the comparison for people: warnings, all figures with their
// intervals, and the counts.
func (c *Comparison) WriteTable(w io.Writer) error {
	var out strings.Builder
	fmt.Fprintf(&out, "A  %s\nB  %s\n", c.A, c.B)
	for _, warning := range c.Warnings {
		fmt.Fprintf(&out, "warning: %s\n", warning)
	}
	fmt.Fprintln(&out)
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "figure\tA\tB\tchange\t")
	rate := 0.0
	for _, change := range c.Changes {
		if change.Rate != rate {
			rate = change.Rate
			fmt.Fprintf(table, "at %s requests/s\t\t\t\t\n", number(rate))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", change.Figure, change.value("a", change.A, change.ACI),
			change.value("b", change.B, change.BCI), change.percent(), change.word())
	}
	_ = table.Flush() // a Builder never fails
	fmt.Fprintf(&out, "\n%d significant regressions and %d improvements of the figures that decide, %d changes of others (significant: the 95%% intervals, each %.1f times as wide, do not overlap, and the change is above %s%%)\n",
		c.Regressions, c.Improvements, c.Others, c.Demand, number(100*c.Threshold))
	if _, err := io.WriteString(w, out.String()); err != nil {
		return fmt.Errorf("write comparison: %w", err)
	}
	return nil
}

// value formats one side, "a" or "b".
func (c Change) value(side string, v float64, ci *[2]float64) string {
	switch {
	case c.Words != "" && c.Only != side:
		return ""
	case ci == nil:
		return number(v)
	}
	return fmt.Sprintf("%s [%s, %s]", number(v), number(ci[0]), number(ci[1]))
}

func (c Change) percent() string {
	switch {
	case c.Words != "":
		return c.Words
	case c.Percent == nil:
		return "n/a"
	}
	return fmt.Sprintf("%+.1f%%", *c.Percent)
}

func (c Change) word() string {
	switch c.Verdict {
	case Regression:
		return "REGRESSION"
	case Improvement:
		return "improvement"
	case Worse, Better:
		return string(c.Verdict)
	case Unknown:
		return "unsure"
	default:
		return ""
	}
}

// number formats four digits.
func number(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }
