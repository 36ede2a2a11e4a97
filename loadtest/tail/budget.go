package tail

import (
	"github.com/tandem-serving/tandem/loadtest/record"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// Stages returns all stages in order.
func Stages() []Stage {
	return []Stage{Dispatch, Tokenize, Retried, Queue, Decide, Reserve, Prefill, TransferExposed, Decode, Other}
}

// Budgets index their parts by position in Stages; stages is their number.
const (
	iDispatch = iota
	iTokenize
	iRetried
	iQueue
	iDecide
	iReserve
	iPrefill
	iTransfer
	iDecode
	iOther
	stages
)

// parts is milliseconds by stage, in the order of Stages.
type parts [stages]float64

func (p *parts) sum() float64 {
	total := 0.0
	for _, v := range p {
		total += v
	}
	return total
}

// scaled scales p to the sum total. The rounding error goes to the largest part.
func (p *parts) scaled(total float64) parts {
	out := *p
	if sum := p.sum(); sum > 0 {
		for i := range out {
			out[i] *= total / sum
		}
	} else {
		out[iOther] = total
	}
	largest := 0
	for i := range out {
		if out[i] > out[largest] {
			largest = i
		}
	}
	out[largest] = max(out[largest]+total-out.sum(), 0)
	return out
}

func (p *parts) byName() map[Stage]float64 {
	names := make(map[Stage]float64, stages)
	for i, stage := range Stages() {
		names[stage] = p[i]
	}
	return names
}

// budget is one request's time from when it was due. No part is negative.
type budget struct {
	record *record.Record
	// ttft and e2e add up to ttftMs and e2eMs.
	ttft, e2e     parts
	ttftMs, e2eMs float64
	// workerQueueMs is the worker's part of the queue stage.
	workerQueueMs float64
}

func ms[T ~int64](nanoseconds T) float64 { return float64(nanoseconds) / 1e6 }

// budgetOf joins a client's record with the server's budget; ok is false without a budget
// or token.
func budgetOf(r *record.Record) (b budget, ok bool) {
	t := r.Timings
	if t == nil || r.First() == record.Unset {
		return budget{}, false
	}
	b = budget{record: r, ttftMs: ms(max(r.First()-r.Due, 0)), e2eMs: ms(max(r.Last()-r.Due, 0))}
	dispatch := 0.0
	if r.Sent != record.Unset {
		dispatch = ms(max(r.Sent-r.Due, 0))
	}
	server := serverParts(t)

	// Only stages before the first token count for TTFT.
	before := server
	before[iTransfer], before[iDecode] = 0, 0
	b.ttft = joined(dispatch, before, b.ttftMs)
	b.e2e = joined(dispatch, server, b.e2eMs)
	b.workerQueueMs = min(ms(max(t.GetPrefillQueueNs(), 0)), b.e2e[iQueue])
	return b, true
}

func serverParts(t *inferencev1.Timings) parts {
	part := func(ns int64) float64 { return ms(max(ns, 0)) }
	return parts{
		iTokenize: part(t.GetTokenizeNs()),
		iRetried:  part(t.GetRetriedNs()),
		iQueue:    part(t.GetQueueNs()),
		iDecide:   part(t.GetDecideNs()),
		iReserve:  part(t.GetReserveNs()),
		iPrefill:  part(t.GetPrefillNs()),
		iTransfer: part(t.GetTransferExposedNs()),
		iDecode:   part(t.GetDecodeNs()),
	}
}

// joined fits the client's dispatch and the server's stages into total; the rest is
// other. If the server had the request before the client recorded that it was sent, the
// stages are too long, and dispatch is shortened. If they are too long even then, because
// tokens of a failed attempt reached the client before the retry began, they are scaled
// down.
func joined(dispatch float64, server parts, total float64) parts {
	sum := server.sum()
	if sum > total {
		return server.scaled(total)
	}
	server[iDispatch] = min(dispatch, total-sum)
	server[iOther] = max(total-sum-server[iDispatch], 0)
	return server
}
