package joining

import (
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// timings is the latency budget. The stages are the gaps between marks
// that never run backwards, from arrival to the last token, so they add up to
// the total exactly. What a worker says of its own queue is moved from the gap
// in which it lies to the queue stage, at most the whole gap. What is left before
// prefill began is the way there and the opening of the transfer, which belong to the
// reservation. And where a
// message came late, so that the gap after it is shorter than what the worker
// computed in it, the difference is moved there from the gap before.
func (j *Join) timings() *inferencev1.Timings {
	t := &j.attempt
	at := j.p.Arrived
	// gap is the time from the last mark to this one; a mark that was never set
	// or lies before the last is the last.
	gap := func(mark time.Time) int64 {
		if mark.After(j.last) {
			mark = j.last
		}
		if mark.IsZero() || !mark.After(at) {
			return 0
		}
		d := mark.Sub(at)
		at = mark
		return int64(d)
	}
	var retried time.Time // until when attempts failed, or one was late
	if j.retries > 0 || t.hedge {
		retried = t.asked
	}
	out := &inferencev1.Timings{
		TokenizeNs: gap(j.p.Tokenized),
		RetriedNs:  gap(retried),
		QueueNs:    gap(t.Began),
		DecideNs:   gap(t.at),
	}
	if t.disaggregated {
		out.ReserveNs = gap(t.reservedAt)
		wait := gap(t.firstAt)
		out.PrefillQueueNs = min(int64(t.workerQueue), wait)
		opened := int64(0)
		if !t.startedAt.IsZero() {
			opened = min(max(int64(t.startedAt.Sub(t.reservedAt)-t.workerQueue)-t.fetchNs, 0), wait-out.PrefillQueueNs)
		}
		out.ReserveNs += opened
		out.PrefillNs = wait - out.PrefillQueueNs - opened
		out.FetchNs = min(t.fetchNs, out.PrefillNs)
		if t.admitted {
			// Decode could go on when the KV was there, before its own queue.
			out.TransferExposedNs = gap(t.admittedAt.Add(-t.decodeQueue))
		}
	} else {
		// The worker's queue began when the request came to it, so it lies before
		// the admission; what is left of that gap is the way there and the
		// reservation.
		wait := gap(t.admittedAt)
		out.PrefillQueueNs = min(int64(t.workerQueue), wait)
		out.ReserveNs = wait - out.PrefillQueueNs
		out.PrefillNs = gap(t.firstAt)
	}
	out.QueueNs += out.PrefillQueueNs
	out.DecodeNs = gap(j.last)
	if t.disaggregated {
		move(&out.ReserveNs, &out.PrefillNs, t.prefillComputeNs)
		move(&out.TransferExposedNs, &out.DecodeNs, t.ended.GetDecodeComputeNs())
	} else {
		move(&out.ReserveNs, &out.PrefillNs, t.ended.GetPrefillComputeNs())
	}
	out.TotalNs = int64(j.last.Sub(j.p.Arrived))

	out.TtftNs = int64(j.firstAt.Sub(j.p.Arrived))
	if n := len(j.tokens); n > 1 {
		out.SecondTokenNs = int64(j.secondAt.Sub(j.firstAt))
		out.TpotNs = int64(j.last.Sub(j.firstAt)) / int64(n-1)
	}
	compute := t.prefillComputeNs
	if t.ended != nil {
		if !t.disaggregated {
			compute = t.ended.GetPrefillComputeNs()
		}
		out.DecodeComputeNs = max(t.ended.GetDecodeComputeNs(), 0)
	}
	out.PrefillComputeNs = max(compute, 0)
	out.TransferNs, out.TransferBytes = max(t.transferNs, 0), t.transferBytes
	out.TransferTailNs = max(t.transferTailNs, 0)
	return out
}

// move makes a stage at least as long as what a worker computed in it, at the
// cost of the stage before.
func move(from, to *int64, computed int64) {
	if short := min(computed-*to, *from); short > 0 {
		*from -= short
		*to += short
	}
}
