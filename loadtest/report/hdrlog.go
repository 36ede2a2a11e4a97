package report

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
)

// hdrSpan bounds what the log can hold; what took longer counts as so long.
const hdrSpan = 24 * time.Hour

// WriteHDR writes an HDR histogram log of version 1.3, which HdrHistogram's tools
// read: for each run one interval a latency, tagged ttft, ttft_sent, second_token,
// itl, tpot, e2e and e2e_sent; of several runs with the rate behind it: ttft@20. Values
// are nanoseconds with three digits, of requests that were due in the run's window.
func WriteHDR(w io.Writer, runs []*record.Run) error {
	out := hdrhistogram.NewHistogramLogWriter(w)
	parts := []func() error{
		func() error { return out.OutputComment("[Latencies of tandem bench serve, nanoseconds]") },
		out.OutputLogFormatVersion,
	}
	if len(runs) > 0 {
		// The log's header has whole seconds.
		base := runs[0].Began.Unix() * 1000
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

// writeIntervals writes the latencies of one run; rated: with its rate in their tags.
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

// logged are the latencies in the log, in order; their tags lack the unit.
var logged = []measure.Latency{
	measure.TTFT, measure.TTFTSent, measure.SecondToken, measure.ITL, measure.TPOT, measure.E2E, measure.E2ESent,
}

// histograms are the latencies of one run.
func histograms(run *record.Run) []*hdrhistogram.Histogram {
	out := make([]*hdrhistogram.Histogram, len(logged))
	by := make(map[measure.Latency]*hdrhistogram.Histogram, len(logged))
	for i, l := range logged {
		// Units of a microsecond keep a day of nanoseconds in little memory.
		h := hdrhistogram.New(int64(time.Microsecond), int64(hdrSpan), 3)
		h.SetTag(strings.TrimSuffix(string(l), "_ms"))
		h.SetStartTimeMs(run.Began.Add(run.From).UnixMilli())
		h.SetEndTimeMs(run.Began.Add(run.To).UnixMilli())
		out[i], by[l] = h, h
	}
	// A value within the bounds is never refused.
	note := func(l measure.Latency, d time.Duration, n int64) {
		_ = by[l].RecordValues(int64(min(max(d, 0), hdrSpan)), n)
	}
	for _, r := range run.Records {
		if r.Due < run.From || r.Due > run.To {
			continue
		}
		for _, l := range logged { // of gaps a request has many, and none here
			if d := measure.OfRequest(l, r); d != record.Unset {
				note(l, d, 1)
			}
		}
		for i, a := range r.Arrivals {
			if i > 0 {
				note(measure.ITL, a.At-r.Arrivals[i-1].At, 1)
			}
			// Tokens of one message came together.
			note(measure.ITL, 0, int64(a.Tokens)-1)
		}
	}
	return out
}
