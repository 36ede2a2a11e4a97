package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/loadtest/measure"
)

// percentiles are the columns of every table: keys as in measure.Percentiles, and names
// for people.
var percentiles = []struct{ key, name string }{
	{"p50", "p50"}, {"p90", "p90"}, {"p95", "p95"}, {"p99", "p99"}, {"p999", "p99.9"}, {"max", "max"},
}

type latencyRow struct {
	latency     measure.Latency
	label, long string
}

// latencyRows are the rows of the table of latencies, in order.
var latencyRows = []latencyRow{
	{measure.TTFT, "TTFT", "Time to first token, from when it was due"},
	{measure.TTFTSent, "  from send", "Time to first token, from the send"},
	{measure.SecondToken, "second token", "First to second token"},
	{measure.ITL, "ITL, token", "Between tokens"},
	{measure.ITLMessage, "ITL, message", "Between messages with tokens"},
	{measure.TPOT, "TPOT", "Time per output token after the first"},
	{measure.E2E, "E2E", "Whole answer, from when it was due"},
	{measure.E2ESent, "  from send", "Whole answer, from the send"},
	{measure.NormalizedE2E, "E2E per token", "Whole answer per output token"},
	{measure.DispatchDelay, "dispatch", "The client's own lateness"},
	{measure.AdmissionDelay, "admission", "From the send to the server's acceptance"},
}

// rowsOf are the rows of which a summary has samples. Where every message brought one
// token, gaps between tokens and between messages are the same and share a row.
func rowsOf(s *measure.Summary) []latencyRow {
	single := distribution(s, measure.ITL).Count == distribution(s, measure.ITLMessage).Count
	var rows []latencyRow
	for _, row := range latencyRows {
		switch {
		case distribution(s, row.latency).Count == 0, single && row.latency == measure.ITLMessage:
			continue
		case single && row.latency == measure.ITL:
			row.label = "ITL"
		}
		rows = append(rows, row)
	}
	return rows
}

// distribution is one latency of a summary, never nil.
func distribution(s *measure.Summary, l measure.Latency) *measure.Distribution {
	for _, d := range s.Distributions() {
		if d.Latency == l && d.Distribution != nil {
			return d.Distribution
		}
	}
	return &measure.Distribution{}
}

// number formats x with three or four digits, whole numbers without a fraction.
func number(x float64) string {
	digits := 0
	switch a := math.Abs(x); {
	case a == math.Trunc(a) && a < 1e9:
	case a < 0.01:
		return strconv.FormatFloat(x, 'g', 2, 64)
	case a < 10:
		digits = 2
	case a < 100:
		digits = 1
	case a >= 1e9:
		return strconv.FormatFloat(x, 'g', 3, 64)
	}
	return strconv.FormatFloat(x, 'f', digits, 64)
}

// rate formats one of a summary's rates of completed requests, which mean nothing if all of
// them ended after the window.
func rate(s *measure.Summary, perSecond float64) string {
	if s.NoneEnded() {
		return "n/a"
	}
	return number(perSecond)
}

// noneEnded says that all requests ended after the window, and how long it should be.
func noneEnded(s *measure.Summary) string {
	text := "no answer ended within the window"
	if most := distribution(s, measure.E2E).Max; most != nil {
		text += fmt.Sprintf(": answers took up to %s, so make it at least %.0f s long", duration(*most), s.WindowNeeded().Seconds())
	}
	return text
}

// trimmed removes trailing zeros of a fraction.
func trimmed(s string) string {
	if strings.ContainsRune(s, '.') {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// duration formats milliseconds with a unit.
func duration(ms float64) string {
	if math.Abs(ms) >= 10_000 {
		return number(ms/1000) + " s"
	}
	return number(ms) + " ms"
}

// simulated formats what a simulation took.
func simulated(s *Simulation) string {
	text := fmt.Sprintf("simulated: %s, %s of virtual time in %s, %s requests per second of real time",
		Count(s.Workers, "worker", "workers"), duration(1000*s.VirtualS), duration(1000*s.WallS), number(s.RequestsPerWallS))
	if len(s.WorkerHours) == 0 {
		return text
	}
	var pools []string
	total := 0.0
	for _, pool := range slices.Sorted(maps.Keys(s.WorkerHours)) {
		total += s.WorkerHours[pool]
		pools = append(pools, pool+" "+number(s.WorkerHours[pool]))
	}
	return fmt.Sprintf("%s; %s worker-hours (%s)", text, number(total), strings.Join(pools, ", "))
}

// percent formats a share.
func percent(share float64) string {
	switch {
	case share > 0.999 && share < 1:
		return trimmed(strconv.FormatFloat(math.Floor(share*1e4)/100, 'f', 2, 64)) + "%" // not 100%
	case share > 0 && share < 0.01:
		return trimmed(strconv.FormatFloat(100*share, 'f', 2, 64)) + "%"
	}
	return trimmed(strconv.FormatFloat(100*share, 'f', 1, 64)) + "%"
}

// Count is a number of things, by the name of one and of many.
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// printable removes terminal control characters from a server's string.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return '?'
	}, s)
}

// Wrap breaks text at spaces into lines of at most width characters. The first line
// begins with first, the others with rest.
func Wrap(text string, width int, first, rest string) string {
	var s strings.Builder
	s.WriteString(first)
	column := utf8.RuneCountInString(first)
	for i, word := range strings.Fields(text) {
		length := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+length > width:
			s.WriteString("\n" + rest)
			column = utf8.RuneCountInString(rest)
		default:
			s.WriteByte(' ')
			column++
		}
		s.WriteString(word)
		column += length
	}
	return s.String()
}

// percentileName formats a percentile's key: p99.9 for p999.
func percentileName(key string) string {
	for _, p := range percentiles {
		if p.key == key {
			return p.name
		}
	}
	return key
}

// Digits is a figure to three digits, or to a whole number.
func Digits(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
