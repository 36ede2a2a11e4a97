package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
)

// hdrSpan is the longest duration in the log; longer ones are clipped to it.
const hdrSpan = 24 * time.Hour

// WriteHDR writes an HDR histogram log, version 1.3. Each run has one interval per
// latency, tagged ttft, ttft_sent, second_token, itl, tpot, e2e and e2e_sent; if there
// are several runs, with the rate appended: ttft@20. Values are nanoseconds with three
// digits, of requests due in the run's window.
func WriteHDR(w io.Writer, runs []*record.Run) error {
	out := hdrhistogram.NewHistogramLogWriter(w)
	parts := []func() error{
		func() error { return out.OutputComment("[Latencies of tandem bench serve, nanoseconds]") },
		out.OutputLogFormatVersion,
	}
	if len(runs) > 0 {
		// The log's header has second resolution.
		first := slices.MinFunc(runs, func(a, b *record.Run) int { return a.Began.Compare(b.Began) })
		base := first.Began.Unix() * 1000
		out.SetBaseTime(base)
		parts = append(parts, func() error { return out.OutputStartTime(base) }, func() error { return out.OutputBaseTime(base) })
	}
	parts = append(parts, out.OutputLegend)
	for _, run := range runs {
		parts = append(parts, func() error { return writeIntervals(out, run, len(runs) > 1) })
	}
	for _, part := range parts {
		if err := part(); err != nil {
			return fmt.Errorf("write HDR log: %w", err)
		}
	}
	return nil
}

// writeIntervals writes one run's latencies; rated: with its rate in their tags.
func writeIntervals(out *hdrhistogram.HistogramLogWriter, run *record.Run, rated bool) error {
	for _, h := range histograms(run) {
		if h.TotalCount() == 0 {
			continue
		}
		if rated {
			h.SetTag(h.Tag() + "@" + cell(run.Offered))
		}
		if err := out.OutputIntervalHistogram(h); err != nil {
			return err
		}
	}
	return nil
}

// logged are the latencies in the log, in order. Their tags omit the unit.
var logged = []measure.Latency{
	measure.TTFT, measure.TTFTSent, measure.SecondToken, measure.ITL, measure.TPOT, measure.E2E, measure.E2ESent,
}

// histograms are one run's latencies.
func histograms(run *record.Run) []*hdrhistogram.Histogram {
	out := make([]*hdrhistogram.Histogram, len(logged))
	by := make(map[measure.Latency]*hdrhistogram.Histogram, len(logged))
	for i, l := range logged {
		// Microsecond resolution keeps memory small for a day of nanoseconds.
		h := hdrhistogram.New(int64(time.Microsecond), int64(hdrSpan), 3)
		h.SetTag(strings.TrimSuffix(string(l), "_ms"))
		h.SetStartTimeMs(run.Began.Add(run.From).UnixMilli())
		h.SetEndTimeMs(run.Began.Add(run.To).UnixMilli())
		out[i], by[l] = h, h
	}
	// Values in range are never rejected.
	note := func(l measure.Latency, d time.Duration, n int64) {
		_ = by[l].RecordValues(int64(min(max(d, 0), hdrSpan)), n)
	}
	for r := range run.Window() {
		for _, l := range logged { // gaps are added below
			if d := measure.OfRequest(l, r); d != record.Unset {
				note(l, d, 1)
			}
		}
		for i, a := range r.Arrivals {
			if i > 0 {
				note(measure.ITL, a.At-r.Arrivals[i-1].At, 1)
			}
			// Tokens of one message arrived together.
			note(measure.ITL, 0, int64(a.Tokens)-1)
		}
	}
	return out
}
