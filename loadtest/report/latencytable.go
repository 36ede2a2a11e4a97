package report

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/loadtest/measure"
)

// alike stands under a percentile without an interval, noInterval explains it.
const (
	alike      = "~"
	noInterval = "~: no interval, because neighbouring requests are alike and so count as fewer samples; run it longer."
)

// under is what stands under a percentile: its confidence interval, written by write, or
// that it has none; empty if there is no percentile.
func under(d *measure.Distribution, key string, write func(ci [2]float64) string) string {
	ci, ok := d.CI[key]
	switch {
	case ok:
		return write(ci)
	case d.Percentile(key) != nil && d.Needs[key] > 0:
		return alike
	}
	return ""
}

// latencies writes the table.
func (t *table) latencies(s *measure.Summary) {
	column := (t.width - labelWidth) / len(percentiles)
	write := func(label string, cells []string) {
		var row strings.Builder
		row.WriteString(label + strings.Repeat(" ", labelWidth-utf8.RuneCountInString(label)))
		for _, c := range cells {
			row.WriteString(strings.Repeat(" ", max(column-utf8.RuneCountInString(c), 1)) + c)
		}
		t.raw("%s", row.String())
	}
	write("milliseconds", columnNames())
	intervals, missing, without := false, false, false
	for _, l := range rowsOf(s) {
		d := distribution(s, l.latency)
		var values, below []string
		for _, p := range percentiles {
			value := "n/a"
			if v := d.Percentile(p.key); v != nil {
				value = number(*v)
			} else {
				missing = true
			}
			text := under(d, p.key, func(ci [2]float64) string { return interval(ci, column-1) })
			intervals, without = intervals || text != "", without || text == alike
			values, below = append(values, value), append(below, text)
		}
		write(l.label, values)
		if strings.Join(below, "") != "" {
			write("", below)
		}
	}
	if intervals {
		t.line("", "Under each percentile is its 95%% confidence interval.")
	}
	if without {
		t.line("", "%s", noInterval)
	}
	if missing {
		t.line("", "n/a: too few samples; it takes %s.", measure.SamplesNeeded())
	}
	if text := severalTokens(s); text != "" {
		t.line("", "%s", text)
	}
}

// severalTokens explains gaps of 0 between tokens; empty if there is nothing to explain.
func severalTokens(s *measure.Summary) string {
	itl, messages := distribution(s, measure.ITL), distribution(s, measure.ITLMessage).Count
	const together = 0.01 // milliseconds
	switch {
	case itl.Count > messages:
		return fmt.Sprintf("ITL, token is 0 between tokens that came in one message, here %s of the gaps. ITL, message is what a user waits between pieces of text.",
			percent(1-float64(messages)/float64(itl.Count)))
	case itl.P50 != nil && *itl.P50 < together:
		return "ITL's median is about 0 because most tokens arrived together with the one before. TPOT has the mean time of a token."
	}
	return ""
}

// interval formats a confidence interval in at most width characters.
func interval(ci [2]float64, width int) string {
	text := number(ci[0]) + "-" + number(ci[1])
	if len(text) > width {
		text = number(ci[0]/1000) + "-" + number(ci[1]/1000) + "s"
	}
	return text
}
