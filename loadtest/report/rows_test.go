package report_test

import (
	"encoding/csv"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/report/reporttest"
	"github.com/tandem-serving/tandem/loadtest/stats"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// csvOf reads the written CSV: for each row a map from column to cell.
func csvOf(t *testing.T, write func(io.Writer) error) []map[string]string {
	t.Helper()
	rows, err := csv.NewReader(strings.NewReader(written(t, write))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var out []map[string]string
	for _, row := range rows[1:] {
		cells := map[string]string{}
		for i, name := range rows[0] {
			if row[i] != "" {
				cells[name] = row[i]
			}
		}
		out = append(out, cells)
	}
	return out
}

func TestCSV(t *testing.T) {
	ms := time.Millisecond
	run := &record.Run{Offered: 2.5, From: 5 * ms, To: time.Second, Records: []*record.Record{
		{
			Index: 0, ID: "a,\"b\"", Class: "chat", Session: 1, Turn: 2, Due: 10 * ms, Dispatched: 11 * ms, Sent: 12 * ms, Admitted: 13 * ms,
			Arrivals: []record.Arrival{{At: 50 * ms, Tokens: 1}, {At: 90 * ms, Tokens: 4}}, End: 91 * ms,
			Outcome: record.Completed, FinishReason: "length", PromptTokens: 7, CachedTokens: -1, OutputTokens: 5,
			Timings: &inferencev1.Timings{TokenizeNs: 1e6, QueueNs: 2500000, TotalNs: 75e6},
			Route:   &inferencev1.Route{Mode: inferencev1.Mode_MODE_DISAGGREGATED, Prefill: "p0", Decode: "d0", Retries: 1},
		},
		{
			Index: 1, Due: 0, Dispatched: 0, Sent: ms, Admitted: record.Unset, End: 3 * ms,
			Outcome: record.Rejected, Code: "HTTP 503", Error: "=HYPERLINK(\"x\")", Reason: "queue_full", PromptTokens: -1, CachedTokens: -1,
		},
	}}
	got := csvOf(t, func(w io.Writer) error { return report.WriteCSV(w, []*record.Run{run}) })
	want := []map[string]string{
		{
			"run": "0", "rate": "2.5", "index": "0", "id": "a,\"b\"", "class": "chat", "session": "1", "turn": "2", "in_window": "true",
			"due_ms": "10", "dispatched_ms": "11", "sent_ms": "12", "admitted_ms": "13", "first_token_ms": "50", "last_token_ms": "90", "end_ms": "91",
			"ttft_ms": "40", "tpot_ms": "10", "e2e_ms": "80", "outcome": "completed", "finish_reason": "length",
			"prompt_tokens": "7", "output_tokens": "5",
			"tokenize_ms": "1", "queue_ms": "2.5", "decide_ms": "0", "reserve_ms": "0", "prefill_ms": "0", "transfer_exposed_ms": "0", "decode_ms": "0", "server_total_ms": "75",
			"mode": "disaggregated", "prefill_worker": "p0", "decode_worker": "d0", "retries": "1",
		},
		{
			"run": "0", "rate": "2.5", "index": "1", "session": "0", "turn": "0", "in_window": "false",
			"due_ms": "0", "dispatched_ms": "0", "sent_ms": "1", "end_ms": "3", "outcome": "rejected", "code": "HTTP 503",
			// So that a spreadsheet reads it as text.
			"error": "'=HYPERLINK(\"x\")", "output_tokens": "0", "reason": "queue_full",
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want -, got +\n%s", diff)
	}
}

// HdrHistogram's own reader reads the log.
func TestHDRLog(t *testing.T) {
	runs := []*record.Run{reporttest.Run(disaggregated, 6, 20*time.Second, 1), reporttest.Run(disaggregated, 12, 20*time.Second, 2)}
	got := map[string][]*hdrhistogram.Histogram{}
	for _, h := range hdrOf(t, runs...) {
		tag, rate, _ := strings.Cut(h.Tag(), "@")
		if want := []string{"6", "12"}[min(len(got[tag]), 1)]; rate != want {
			t.Errorf("an interval is tagged %s, want the rate %s", h.Tag(), want)
		}
		got[tag] = append(got[tag], h)
	}
	for _, tag := range []string{"ttft", "ttft_sent", "second_token", "itl", "tpot", "e2e", "e2e_sent"} {
		if len(got[tag]) != len(runs) {
			t.Fatalf("%s has %d intervals of %d runs", tag, len(got[tag]), len(runs))
		}
	}
	for i, run := range runs {
		f := reporttest.Figures(run)
		for tag, d := range map[string]*measure.Distribution{"ttft": f.TTFT, "ttft_sent": f.TTFTSent, "itl": f.ITL, "tpot": f.TPOT, "e2e": f.E2E, "second_token": f.SecondToken} {
			want, err := stats.DecodeHistogram(d.HDR)
			if err != nil {
				t.Fatal(err)
			}
			for _, q := range []float64{0.25, 0.5, 0.9, 0.99} {
				// They may differ by one rank and one bucket.
				least, most := want.Quantile(q-1/float64(d.Count)), want.Quantile(q+1/float64(d.Count))
				ns := float64(got[tag][i].ValueAtPercentile(100 * q))
				if ns < float64(least)*0.998 || ns > float64(most)*1.002 {
					t.Errorf("run %d: %s at %v is %v ns in the log, %v to %v in the report", i, tag, q, ns, least, most)
				}
			}
		}
		if n := got["ttft"][i].TotalCount(); n != f.TTFT.Count {
			t.Errorf("run %d: %d requests in the log, %d in the report", i, n, f.TTFT.Count)
		}
		if start := got["ttft"][i].StartTimeMs(); start != run.Began.Add(run.From).UnixMilli() {
			t.Errorf("run %d begins at %d", i, start)
		}
	}
}

// If the server counts tokens that did not come, such as one without text, all files
// have the same TPOT.
func TestTPOTIsTheSameEverywhere(t *testing.T) {
	ms := time.Millisecond
	run := &record.Run{Began: time.Unix(1, 0), To: time.Second, Drained: time.Second, Records: []*record.Record{{
		Outcome: record.Completed, Sent: record.Unset, Admitted: record.Unset, OutputTokens: 6, End: 200 * ms,
		Arrivals: []record.Arrival{{At: 100 * ms, Tokens: 1}, {At: 200 * ms, Tokens: 1}},
	}}}
	f := figuresOf(run)
	if got := f.TPOT.Max; got == nil || *got != 20 {
		t.Fatalf("TPOT is %v in the summary, want 20: 100 ms for 5 tokens", got)
	}
	if p := f.Series[0]; p.TPOTMax == nil || *p.TPOTMax != 20 {
		t.Errorf("TPOT is %v in the series", p.TPOTMax)
	}
	if row := csvOf(t, func(w io.Writer) error { return report.WriteCSV(w, []*record.Run{run}) })[0]; row["tpot_ms"] != "20" {
		t.Errorf("TPOT is %s in the rows", row["tpot_ms"])
	}
	for _, h := range hdrOf(t, run) {
		if got := h.Max(); h.Tag() == "tpot" && (got < int64(20*ms)*999/1000 || got > int64(20*ms)*1001/1000) {
			t.Errorf("TPOT is %d ns in the log", got)
		}
	}
}

// hdrOf returns the log of these runs.
func hdrOf(t *testing.T, runs ...*record.Run) []*hdrhistogram.Histogram {
	t.Helper()
	log := hdrhistogram.NewHistogramLogReader(strings.NewReader(written(t, func(w io.Writer) error { return report.WriteHDR(w, runs) })))
	var all []*hdrhistogram.Histogram
	for {
		h, err := log.NextIntervalHistogram()
		if err != nil {
			t.Fatal(err)
		}
		if h == nil {
			return all
		}
		all = append(all, h)
	}
}

// Tokens of one message have gaps of zero.
func TestHDRLogOfMessages(t *testing.T) {
	ms := time.Millisecond
	run := &record.Run{Began: time.Unix(1, 0), To: time.Second, Records: []*record.Record{{
		Outcome: record.Completed, Sent: record.Unset, OutputTokens: 5, End: 140 * ms,
		Arrivals: []record.Arrival{{At: 100 * ms, Tokens: 3}, {At: 140 * ms, Tokens: 2}},
	}}}
	counts := map[string]int64{}
	for _, h := range hdrOf(t, run) {
		counts[h.Tag()] = h.TotalCount()
		if h.Tag() == "itl" && h.ValueAtPercentile(75) > int64(ms) {
			t.Errorf("three of four gaps are 0, and p75 is %d ns", h.ValueAtPercentile(75))
		}
	}
	if diff := cmp.Diff(map[string]int64{"ttft": 1, "e2e": 1, "tpot": 1, "itl": 4, "second_token": 1}, counts); diff != "" {
		t.Errorf("want -, got +\n%s", diff)
	}
}

// Runs are sorted by rate: the first may have begun after others. No interval of the log begins before it.
func TestHDRLogBeginsWithTheFirstRun(t *testing.T) {
	var runs []*record.Run
	for _, began := range []int64{2000, 1000} {
		runs = append(runs, &record.Run{Began: time.Unix(began, 0), Offered: float64(1 + len(runs)), To: time.Second, Records: []*record.Record{{
			Outcome: record.Completed, Sent: record.Unset, OutputTokens: 1, End: time.Millisecond, Arrivals: []record.Arrival{{At: time.Millisecond, Tokens: 1}},
		}}})
	}
	if log := written(t, func(w io.Writer) error { return report.WriteHDR(w, runs) }); !strings.Contains(log, "#[StartTime: 1000 ") || strings.Contains(log, ",-") {
		t.Error(log)
	}
}
