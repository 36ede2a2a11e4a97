package tail_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/tail"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

const window = time.Hour

// request is a completed request with these stages in milliseconds: dispatch, the
// server's seven, then what none covers before and after the first token.
func request(index int, dispatch float64, server [7]float64, before, after float64) *record.Record {
	at := func(ms float64) time.Duration { return time.Duration(ms * 1e6) }
	due := time.Duration(index) * time.Millisecond
	first := due + at(dispatch+server[0]+server[1]+server[2]+server[3]+server[4]+before)
	last := first + at(server[5]+server[6]+after)
	total := 0.0
	for _, s := range server {
		total += s
	}
	return &record.Record{
		Index: index, ID: fmt.Sprintf("r-%d", index),
		Due: due, Dispatched: due, Sent: due + at(dispatch), Admitted: due + at(dispatch),
		Arrivals: []record.Arrival{{At: first, Tokens: 1}, {At: last, Tokens: 7}},
		End:      last, Outcome: record.Completed, OutputTokens: 8,
		Timings: &inferencev1.Timings{
			TokenizeNs: int64(at(server[0])), QueueNs: int64(at(server[1])), DecideNs: int64(at(server[2])),
			ReserveNs: int64(at(server[3])), PrefillNs: int64(at(server[4])),
			TransferExposedNs: int64(at(server[5])), DecodeNs: int64(at(server[6])), TotalNs: int64(at(total)),
		},
		Route: &inferencev1.Route{Mode: inferencev1.Mode_MODE_DISAGGREGATED, Prefill: "p0", Decode: "d0"},
	}
}

func runOf(records ...*record.Record) *record.Run {
	return &record.Run{To: window, Records: records}
}

// summaryOf has the percentiles that are not negative.
func summaryOf(ttft, e2e [4]float64) *measure.Summary {
	of := func(p [4]float64) *measure.Distribution {
		d := &measure.Distribution{}
		for i, to := range []**float64{&d.P50, &d.P90, &d.P99, &d.P999} {
			if p[i] >= 0 {
				*to = &p[i]
			}
		}
		return d
	}
	return &measure.Summary{TTFT: of(ttft), E2E: of(e2e)}
}

var unknown = [4]float64{-1, -1, -1, -1}

func TestTheLineNamesTheStages(t *testing.T) {
	r := request(0, 0, [7]float64{0, 520, 0.1, 60, 220, 0, 300}, 12, 0)
	e := tail.Explain(runOf(r), summaryOf([4]float64{-1, -1, 812.1, -1}, unknown))
	if len(e.Breakdowns) != 1 {
		t.Fatalf("got %d breakdowns, want that of p99 TTFT only: %+v", len(e.Breakdowns), e.Breakdowns)
	}
	if got, want := e.Breakdowns[0].Text, "p99 TTFT 812 ms = queue 520 + reserve 60 + prefill 220 + other 12"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Printed figures add up even if each rounds down.
func TestTheLineAddsUpAsPrinted(t *testing.T) {
	r := request(0, 0, [7]float64{0, 33.34, 0, 33.33, 33.33, 0, 0}, 100.4, 0)
	e := tail.Explain(runOf(r), summaryOf([4]float64{200.4, -1, -1, -1}, unknown))
	if got, want := e.Breakdowns[0].Text, "p50 TTFT 200 ms = queue 33 + reserve 33 + prefill 33 + other 101"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestSmallTimesKeepDigits(t *testing.T) {
	r := request(0, 0.25, [7]float64{0.5, 0, 0, 0, 3, 0, 20}, 0.25, 1)
	e := tail.Explain(runOf(r), summaryOf([4]float64{4, -1, -1, -1}, [4]float64{25, -1, -1, -1}))
	want := []string{
		"p50 TTFT 4.00 ms = dispatch 0.25 + tokenize 0.50 + prefill 3.00 + other 0.25",
		"p50 E2E 25.0 ms = dispatch 0.3 + tokenize 0.5 + prefill 3.0 + decode 20.0 + other 1.2",
	}
	for i, b := range e.Breakdowns {
		if b.Text != want[i] {
			t.Errorf("got  %s\nwant %s", b.Text, want[i])
		}
	}
}

func TestNobodyExplainsWithoutBudgets(t *testing.T) {
	r := request(0, 0, [7]float64{1, 1, 1, 1, 1, 1, 1}, 0, 0)
	r.Timings = nil
	if e := tail.Explain(runOf(r), summaryOf(unknown, unknown)); e != nil {
		t.Errorf("explained without a server's budget: %+v", e)
	}
}

// Requests in warm-up, after the window or not completed do not count.
func TestOnlyTheWindowCounts(t *testing.T) {
	server := [7]float64{1, 1, 1, 1, 1, 1, 1}
	records := []*record.Record{request(0, 0, server, 0, 0), request(5, 0, server, 0, 0), request(10, 0, server, 0, 0), request(6, 0, server, 0, 0)}
	records[3].Outcome = record.Failed
	run := &record.Run{From: 2 * time.Millisecond, To: 8 * time.Millisecond, Records: records}
	e := tail.Explain(run, summaryOf(unknown, unknown))
	if e.Joined != 1 || e.Completed != 1 || e.Slowest[0].Index != 5 {
		t.Errorf("joined %d of %d, slowest %+v; want request 5 only", e.Joined, e.Completed, e.Slowest)
	}
}

func TestWaterfall(t *testing.T) {
	server := [7]float64{1, 10, 2, 3, 20, 4, 50}
	spans := func(mode inferencev1.Mode) []tail.Span {
		r := request(0, 5, server, 6, 7)
		r.Timings.PrefillQueueNs = 4e6
		r.Route.Mode = mode
		return tail.Explain(runOf(r), summaryOf(unknown, unknown)).Slowest[0].Spans
	}
	tests := []struct {
		mode inferencev1.Mode
		want []tail.Span
	}{
		{inferencev1.Mode_MODE_DISAGGREGATED, []tail.Span{
			{tail.Dispatch, 0, 5}, {tail.Tokenize, 5, 6}, {tail.Queue, 6, 12}, {tail.Decide, 12, 14}, {tail.Reserve, 14, 17},
			{tail.Queue, 17, 21}, {tail.Prefill, 21, 41}, {tail.Other, 41, 47}, {tail.TransferExposed, 47, 51}, {tail.Decode, 51, 101}, {tail.Other, 101, 108},
		}},
		{inferencev1.Mode_MODE_AGGREGATED, []tail.Span{
			{tail.Dispatch, 0, 5}, {tail.Tokenize, 5, 6}, {tail.Queue, 6, 12}, {tail.Decide, 12, 14},
			{tail.Queue, 14, 18}, {tail.Reserve, 18, 21}, {tail.Prefill, 21, 41}, {tail.Other, 41, 47}, {tail.TransferExposed, 47, 51}, {tail.Decode, 51, 101}, {tail.Other, 101, 108},
		}},
	}
	for _, test := range tests {
		if diff := cmp.Diff(test.want, spans(test.mode)); diff != "" {
			t.Errorf("%v: want -, got +\n%s", test.mode, diff)
		}
	}
}

// The slowest are listed once each, by TTFT first.
// Failed tries have a span of their own.
func TestWaterfallHasFailedTries(t *testing.T) {
	r := request(0, 0, [7]float64{1, 0, 0, 2, 30, 0, 40}, 5, 0)
	r.Timings.RetriedNs = 5e6
	spans := tail.Explain(runOf(r), summaryOf(unknown, unknown)).Slowest[0].Spans
	if len(spans) < 2 || spans[1].Stage != tail.Retried || spans[1].FromMs != 1 || spans[1].ToMs != 6 {
		t.Errorf("%+v", spans)
	}
}

func TestSlowestAreDistinct(t *testing.T) {
	var records []*record.Record
	for i := range 100 {
		// A higher index has a slower first token; 0 to 9 have slow last tokens.
		decode := 10.0
		if i < 10 {
			decode = 5000 - float64(i)
		}
		records = append(records, request(i, 0, [7]float64{0, 0, 0, 0, float64(i), 0, decode}, 0, 0))
	}
	e := tail.Explain(runOf(records...), summaryOf(unknown, unknown))
	if len(e.Slowest) != 20 {
		t.Fatalf("%d requests, want 10 by TTFT and 10 by E2E", len(e.Slowest))
	}
	for i, w := range e.Slowest {
		want, by := 99-i, measure.TTFT
		if i >= 10 {
			by = measure.E2E
		}
		if i < 10 && w.Index != want || w.By != by {
			t.Errorf("place %d: request %d by %s", i, w.Index, w.By)
		}
	}
}

// If a stage takes half of every request, doubling its speed saves a quarter, and
// removing it a half.
func TestAmdahl(t *testing.T) {
	var records []*record.Record
	for i := range 200 {
		x := float64(i + 1)
		records = append(records, request(i, 0, [7]float64{0, x, 0, 0, x, 0, 0}, 0, 0))
	}
	e := tail.Explain(runOf(records...), summaryOf([4]float64{200, -1, 396, -1}, unknown))
	want := []tail.WhatIf{
		{measure.TTFT, "p50", tail.Queue, 2, 200, 150}, {measure.TTFT, "p50", tail.Queue, 0, 200, 100},
		{measure.TTFT, "p50", tail.Prefill, 2, 200, 150}, {measure.TTFT, "p50", tail.Prefill, 0, 200, 100},
		{measure.TTFT, "p99", tail.Queue, 2, 396, 297}, {measure.TTFT, "p99", tail.Queue, 0, 396, 198},
		{measure.TTFT, "p99", tail.Prefill, 2, 396, 297}, {measure.TTFT, "p99", tail.Prefill, 0, 396, 198},
	}
	round := cmp.Transformer("round", func(x float64) int64 { return int64(math.Round(x * 1e6)) })
	if diff := cmp.Diff(want, e.Amdahl, round); diff != "" {
		t.Errorf("want -, got +\n%s", diff)
	}
}

func TestOtherShares(t *testing.T) {
	var records []*record.Record
	for i := range 99 {
		records = append(records, request(i, 0, [7]float64{0, 0, 0, 0, 49, 0, 50}, 0, 1))
	}
	records = append(records, request(99, 0, [7]float64{0, 0, 0, 0, 25, 0, 25}, 25, 25))
	e := tail.Explain(runOf(records...), summaryOf(unknown, unknown))
	if math.Abs(e.OtherShareMean-0.0149) > 1e-9 || math.Abs(e.OtherShareP50-0.01) > 1e-9 || math.Abs(e.OtherShareP99-0.01) > 1e-9 {
		t.Errorf("shares of mean %v, p50 %v, p99 %v", e.OtherShareMean, e.OtherShareP50, e.OtherShareP99)
	}
}

// For any input, stages add up to the client's measurement and are not negative,
// waterfalls have no gap, and speeding up a stage never slows a request.
func TestWhateverIsSaidAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		span := rapid.Int64Range(-1e6, 5e9)
		n := rapid.IntRange(1, 60).Draw(t, "requests")
		var records []*record.Record
		for i := range n {
			due := time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "due"))
			sent := due + time.Duration(rapid.Int64Range(0, 1e8).Draw(t, "dispatch"))
			first := sent + time.Duration(rapid.Int64Range(0, 3e9).Draw(t, "first"))
			last := first + time.Duration(rapid.Int64Range(0, 3e9).Draw(t, "rest"))
			if rapid.Bool().Draw(t, "unsent") {
				sent = record.Unset
			}
			records = append(records, &record.Record{
				Index: i, Due: due, Sent: sent, End: last, Outcome: record.Completed,
				Arrivals: []record.Arrival{{At: first, Tokens: 1}, {At: last, Tokens: 1}},
				Timings: &inferencev1.Timings{
					TokenizeNs: span.Draw(t, "tokenize"), QueueNs: span.Draw(t, "queue"), DecideNs: span.Draw(t, "decide"),
					ReserveNs: span.Draw(t, "reserve"), PrefillNs: span.Draw(t, "prefill"), TransferExposedNs: span.Draw(t, "transfer"),
					DecodeNs: span.Draw(t, "decode"), PrefillQueueNs: span.Draw(t, "prefill queue"),
				},
			})
		}
		percentile := rapid.Float64Range(0, 1e5)
		var ttft, e2e [4]float64
		for i := range ttft {
			ttft[i], e2e[i] = percentile.Draw(t, "ttft"), percentile.Draw(t, "e2e")
		}
		e := tail.Explain(runOf(records...), summaryOf(ttft, e2e))
		if e.Joined != n || len(e.Breakdowns) != 8 {
			t.Fatalf("joined %d of %d, %d breakdowns", e.Joined, n, len(e.Breakdowns))
		}
		for _, b := range e.Breakdowns {
			sum := 0.0
			for stage, v := range b.Stages {
				if v < 0 {
					t.Fatalf("%s %s: %s takes %v", b.Percentile, b.Latency, stage, v)
				}
				sum += v
			}
			if math.Abs(sum-b.Milliseconds) > 1e-9*max(b.Milliseconds, 1) {
				t.Fatalf("%s %s: stages add up to %v, not %v", b.Percentile, b.Latency, sum, b.Milliseconds)
			}
			if b.Latency == measure.TTFT && (b.Stages[tail.Decode] != 0 || b.Stages[tail.TransferExposed] != 0) {
				t.Fatalf("what follows the first token is in TTFT: %v", b.Stages)
			}
			checkLine(t, b)
		}
		for _, w := range e.Slowest {
			at := 0.0
			for _, s := range w.Spans {
				if s.FromMs != at || s.ToMs < s.FromMs {
					t.Fatalf("request %d: span %+v after %v", w.Index, s, at)
				}
				at = s.ToMs
			}
			if math.Abs(at-w.E2EMs) > 1e-6 {
				t.Fatalf("request %d: spans end at %v, the request at %v", w.Index, at, w.E2EMs)
			}
		}
		for _, a := range e.Amdahl {
			if a.ThenMs < 0 || a.ThenMs > a.NowMs {
				t.Fatalf("faster, and then %+v", a)
			}
		}
		for _, share := range []float64{e.OtherShareMean, e.OtherShareP50, e.OtherShareP99} {
			if share < 0 || share > 1+1e-9 {
				t.Fatalf("other is %v of E2E", share)
			}
		}
	})
}

// checkLine checks that a line's figures add up.
func checkLine(t *rapid.T, b tail.Breakdown) {
	head, rest, ok := strings.Cut(b.Text, " ms = ")
	if !ok {
		return // all of it rounds to 0
	}
	number := func(s string) (v float64) {
		if _, err := fmt.Sscanf(s[strings.LastIndexByte(s, ' ')+1:], "%f", &v); err != nil {
			t.Fatalf("%q in %q: %v", s, b.Text, err)
		}
		return v
	}
	sum := 0.0
	for part := range strings.SplitSeq(rest, " + ") {
		sum += number(part)
	}
	if math.Abs(sum-number(head)) > 1e-6 {
		t.Fatalf("does not add up: %s", b.Text)
	}
}
