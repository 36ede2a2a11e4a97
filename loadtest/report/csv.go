package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/stats"
)

// WriteCSV writes a row for each request of each run, including warm-up. Times are
// milliseconds since the run's start; latencies (as in the summary) and stages are
// milliseconds. Missing values are empty.
func WriteCSV(w io.Writer, runs []*record.Run) error {
	out := csv.NewWriter(w)
	// Errors are sticky: Error returns them.
	_ = out.Write([]string{
		"run", "rate", "index", "id", "class", "session", "turn", "in_window",
		"due_ms", "dispatched_ms", "sent_ms", "admitted_ms", "first_token_ms", "last_token_ms", "end_ms",
		"ttft_ms", "tpot_ms", "e2e_ms",
		"outcome", "code", "error", "finish_reason", "prompt_tokens", "cached_tokens", "output_tokens",
		"tokenize_ms", "queue_ms", "decide_ms", "reserve_ms", "prefill_ms", "transfer_exposed_ms", "decode_ms", "server_total_ms",
		"mode", "prefill_worker", "decode_worker", "retries", "reason",
	})
	for i, run := range runs {
		for _, r := range run.Records {
			if out.Write(row(i, run, r)) != nil {
				break
			}
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("write csv: %w", err)
	}
	return nil
}

func row(i int, run *record.Run, r *record.Record) []string {
	moment := func(d time.Duration) string {
		if d == record.Unset {
			return ""
		}
		return cell(stats.Milliseconds(d))
	}
	latency := func(l measure.Latency) string { return moment(measure.OfRequest(l, r)) }
	tokens := func(n int) string {
		if n < 0 {
			return ""
		}
		return strconv.Itoa(n)
	}
	fields := []string{
		strconv.Itoa(i), cell(run.Offered), strconv.Itoa(r.Index), text(r.ID), text(r.Class),
		strconv.Itoa(r.Session), strconv.Itoa(r.Turn), strconv.FormatBool(run.Counts(r)),
		moment(r.Due), moment(r.Dispatched), moment(r.Sent), moment(r.Admitted), moment(r.First()), moment(r.Last()), moment(r.End),
		latency(measure.TTFT), latency(measure.TPOT), latency(measure.E2E),
		r.Outcome.String(), text(r.Code), text(r.Error), text(r.FinishReason),
		tokens(r.PromptTokens), tokens(r.CachedTokens), tokens(r.OutputTokens),
	}
	if t := r.Timings; t != nil {
		for _, ns := range []int64{
			t.GetTokenizeNs(), t.GetQueueNs(), t.GetDecideNs(), t.GetReserveNs(), t.GetPrefillNs(),
			t.GetTransferExposedNs(), t.GetDecodeNs(), t.GetTotalNs(),
		} {
			fields = append(fields, cell(float64(ns)/1e6))
		}
	} else {
		fields = append(fields, "", "", "", "", "", "", "", "")
	}
	if route := r.Route; route != nil {
		mode := strings.ToLower(strings.TrimPrefix(route.GetMode().String(), "MODE_"))
		return append(fields, mode, text(route.GetPrefill()), text(route.GetDecode()), strconv.FormatUint(uint64(route.GetRetries()), 10), text(r.Reason))
	}
	return append(fields, "", "", "", "", text(r.Reason))
}

// cell formats a number.
func cell(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

// text protects a server's string from being read as a spreadsheet formula.
func text(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
		return "'" + s
	}
	return s
}
