package report

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/tail"
)

// letters stand for stages in bars.
var letters = map[tail.Stage]byte{
	tail.Dispatch: '.', tail.Tokenize: 't', tail.Retried: 'R', tail.Queue: 'Q', tail.Decide: 'c', tail.Reserve: 'r',
	tail.Prefill: 'P', tail.TransferExposed: 'x', tail.Decode: 'd', tail.Other: '-',
}

// slowestInTable is the number of requests shown per latency.
const slowestInTable = 3

func (t *table) tail(e *tail.Explanation) {
	if e == nil {
		return
	}
	t.gap()
	if len(e.Breakdowns) > 0 {
		t.line("", "Where the time went, by the server's latency budgets (%d of %s):", e.Joined, Count(e.Completed, "completed request", "completed requests"))
	}
	for _, b := range e.Breakdowns {
		t.line("  ", "%s", b.Text)
	}
	t.line("", "Time outside all stages: %s of E2E on average, %s in the median request, %s in the one at p99.",
		percent(e.OtherShareMean), percent(e.OtherShareP50), percent(e.OtherShareP99))
	t.whatIfs(e.Amdahl)
	t.slowest(e.Slowest)
}

// whatIfs writes the Amdahl table for p99, or p50 without one.
func (t *table) whatIfs(all []tail.WhatIf) {
	type column struct {
		title string
		now   float64
		then  map[string]float64 // by stage and speedup
	}
	var columns []column
	seen := map[tail.Stage]bool{}
	key := func(stage tail.Stage, speedup float64) string { return string(stage) + " " + number(speedup) }
	for _, latency := range []measure.Latency{measure.TTFT, measure.E2E} {
		for _, percentile := range []string{"p99", "p50"} {
			c := column{title: percentile + " " + latencyName(latency), then: map[string]float64{}}
			for _, a := range all {
				if a.Latency == latency && a.Percentile == percentile {
					c.now, seen[a.Stage] = a.NowMs, true
					c.then[key(a.Stage, a.Speedup)] = a.ThenMs
				}
			}
			if len(c.then) > 0 {
				columns = append(columns, c)
				break
			}
		}
	}
	if len(columns) == 0 {
		return
	}
	t.gap()
	var first, second strings.Builder
	for _, c := range columns {
		fmt.Fprintf(&first, "%26s", c.title+" "+duration(c.now))
		fmt.Fprintf(&second, "%14s%12s", "twice as fast", "gone")
	}
	t.raw("%-20s%s", "if all else stayed,", first.String())
	t.raw("%-20s%s", "and this stage were", second.String())
	for _, stage := range tail.Stages() {
		if !seen[stage] {
			continue
		}
		var row strings.Builder
		for _, c := range columns {
			for i, speedup := range []float64{2, 0} {
				cell := ""
				if then, ok := c.then[key(stage, speedup)]; ok {
					cell = number(then)
				}
				fmt.Fprintf(&row, "%*s", 14-2*i, cell)
			}
		}
		t.raw("  %-18s%s", stageName(stage), row.String())
	}
}

func (t *table) slowest(all []tail.Waterfall) {
	picked := map[measure.Latency]int{}
	most := 0.0
	var show []tail.Waterfall
	for _, w := range all {
		if picked[w.By]++; picked[w.By] <= slowestInTable {
			show = append(show, w)
			most = max(most, w.E2EMs)
		}
	}
	if len(show) == 0 || most <= 0 || math.IsInf(most, 0) {
		return
	}
	t.gap()
	names, column, cut := make([]string, len(show)), utf8.RuneCountInString("slowest requests"), false
	for i, w := range show {
		id, whole := beginning(w.ID)
		names[i], cut = fmt.Sprintf("#%d %s", w.Index, id), cut || !whole
		column = max(column, utf8.RuneCountInString(names[i]))
	}
	width := t.width - column - len("     TTFT       E2E ")
	t.raw("%-*s %8s  %8s 0%*s", column, "slowest requests", "TTFT", "E2E", width-1, duration(most))
	for i, w := range show {
		t.raw("%-*s %8s  %8s %s", column, names[i], number(w.TTFTMs), number(w.E2EMs), bar(w, most, width))
	}
	var legend []string
	for _, stage := range tail.Stages() {
		legend = append(legend, string(letters[stage])+" "+stageName(stage))
	}
	t.line("", "%s", strings.Join(legend, ", "))
	if cut {
		t.line("", "…: the rest of the id; --report, --out and --csv have it.")
	}
}

// beginning is an id, or its first characters if it is too long for the table: those that
// people pass to 'tandem explain'.
func beginning(id string) (text string, whole bool) {
	const most, first = 16, 10
	runes := []rune(id)
	if len(runes) <= most {
		return id, true
	}
	return string(runes[:first]) + "…", false
}

// bar draws a waterfall of width characters on a scale of most milliseconds. Each
// character is the stage at the middle of its time.
func bar(w tail.Waterfall, most float64, width int) string {
	out := []byte(strings.Repeat(" ", width))
	for i := range out {
		middle := (float64(i) + 0.5) * most / float64(width)
		for _, s := range w.Spans {
			if letter, ok := letters[s.Stage]; ok && s.FromMs <= middle && middle < s.ToMs {
				out[i] = letter
				break
			}
		}
	}
	return string(out)
}

// stageName formats a stage.
func stageName(s tail.Stage) string { return strings.ReplaceAll(string(s), "_", " ") }

// latencyName formats a latency: TTFT for ttft_ms.
func latencyName(l measure.Latency) string {
	switch l {
	case measure.TTFT:
		return "TTFT"
	case measure.TPOT:
		return "TPOT"
	case measure.E2E:
		return "E2E"
	case measure.ITL:
		return "ITL"
	}
	return strings.ReplaceAll(strings.TrimSuffix(string(l), "_ms"), "_", " ")
}
