// Package stats says what a sample of latencies tells. Histogram counts them in bounded
// memory, QuantileRanks are the interval of a quantile, QuantileNeeds says how many
// samples that takes, and EffectiveSize how many independent samples those are worth that
// depend on one another.
//
// Anything may import it. It starts no goroutines and reads no clock.
package stats

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Geometry of a Histogram: microseconds, three significant digits, up to an hour. It
// always takes 188 KiB.
const (
	histogramLowest  = 1
	histogramHighest = int64(time.Hour / time.Microsecond)
	histogramDigits  = 3
	// maxEncoded bounds the input of DecodeHistogram; a full histogram is shorter.
	maxEncoded = 1 << 20
)

// Histogram counts durations in buckets no wider than a thousandth of their value
// (HdrHistogram by Gil Tene), in bounded memory. It is not safe for concurrent use: use
// one per goroutine and Merge them.
type Histogram struct {
	h *hdrhistogram.Histogram
	// sum, in nanoseconds, and max are exact; encoding loses them.
	sum float64
	max time.Duration
}

// NewHistogram returns an empty histogram.
func NewHistogram() *Histogram {
	return &Histogram{h: hdrhistogram.New(histogramLowest, histogramHighest, histogramDigits)}
}

// Record counts d once. Negative values count as 0, values over an hour as an hour.
func (h *Histogram) Record(d time.Duration) { h.RecordN(d, 1) }

// RecordN counts d n times. It ignores n below 1.
func (h *Histogram) RecordN(d time.Duration, n int64) {
	if n < 1 {
		return
	}
	d = min(max(d, 0), time.Hour)
	us := int64((d + time.Microsecond/2) / time.Microsecond)
	if h.h.RecordValues(min(us, histogramHighest), n) != nil {
		return // more than 2^63 observations
	}
	h.sum += float64(d) * float64(n)
	h.max = max(h.max, d)
}

// Merge adds other's counts. other is unchanged.
func (h *Histogram) Merge(other *Histogram) {
	h.h.Merge(other.h)
	h.sum += other.sum
	h.max = max(h.max, other.max)
}

// Count is the number of durations.
func (h *Histogram) Count() int64 { return h.h.TotalCount() }

// Mean of the durations, 0 if none.
func (h *Histogram) Mean() time.Duration {
	if h.Count() == 0 {
		return 0
	}
	return time.Duration(h.sum / float64(h.Count()))
}

// Max is the longest duration, 0 if none.
func (h *Histogram) Max() time.Duration { return h.max }

// Quantile is the least duration that at least the share q do not exceed, rounded up to
// its bucket's end. 0 if none.
func (h *Histogram) Quantile(q float64) time.Duration {
	// A share that is a whole number of durations must not round up.
	return h.AtRank(int64(math.Ceil(min(max(q, 0), 1)*float64(h.Count()) - 1e-6)))
}

// AtRank is the k-th shortest duration, from 1, rounded to its bucket. k is clamped.
func (h *Histogram) AtRank(k int64) time.Duration {
	n := h.Count()
	if n == 0 {
		return 0
	}
	share := float64(min(max(k, 1), n)) / float64(n)
	v := time.Duration(h.h.ValueAtPercentile(share*100)) * time.Microsecond
	return min(v, h.max)
}

// Encode encodes the histogram in HdrHistogram's V2 compressed encoding, base64,
// microseconds.
func (h *Histogram) Encode() (string, error) {
	text, err := h.h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return "", fmt.Errorf("encode histogram: %w", err)
	}
	return string(text), nil
}

// DecodeHistogram decodes the result of Encode. Sum and maximum are then only
// bucket-accurate. It rejects other geometries, which bounds allocation for untrusted
// input.
func DecodeHistogram(text string) (*Histogram, error) {
	if len(text) > maxEncoded {
		return nil, fmt.Errorf("a histogram of %d bytes, at most %d", len(text), maxEncoded)
	}
	h, err := hdrhistogram.Decode([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("decode histogram: %w", err)
	}
	if h.LowestTrackableValue() != histogramLowest || h.HighestTrackableValue() != histogramHighest ||
		h.SignificantFigures() != histogramDigits {
		return nil, errors.New("a histogram of another geometry: want microseconds up to an hour, three digits")
	}
	return &Histogram{
		h:   h,
		sum: h.Mean() * float64(h.TotalCount()) * float64(time.Microsecond),
		max: time.Duration(h.Max()) * time.Microsecond,
	}, nil
}
