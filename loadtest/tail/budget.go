package tail

import (
	"github.com/tandem-serving/tandem/loadtest/record"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// Stages are all stages in order of life.
func Stages() []Stage {
	return []Stage{Dispatch, Tokenize, Queue, Decide, Reserve, Prefill, TransferExposed, Decode, Other}
}

// Budgets index their parts by position in Stages; stages is how many there are.
const (
	iDispatch = iota
	iTokenize
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

// scaled is p multiplied so that its sum is total; what floating point leaves over
// goes to the largest part.
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

// budget is one request's time, from when it was due. No part is negative.
type budget struct {
	record *record.Record
	// ttft and e2e add up to ttftMs and e2eMs.
	ttft, e2e     parts
	ttftMs, e2eMs float64
	// workerQueueMs is the part of the queue stage that was the worker's.
	workerQueueMs float64
}

func ms[T ~int64](nanoseconds T) float64 { return float64(nanoseconds) / 1e6 }

// budgetOf joins what a client saw of a request with the server's budget of it; ok
// is false if there is none or no token came.
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

	// To the first token only what comes before it counts.
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
		iQueue:    part(t.GetQueueNs()),
		iDecide:   part(t.GetDecideNs()),
		iReserve:  part(t.GetReserveNs()),
		iPrefill:  part(t.GetPrefillNs()),
		iTransfer: part(t.GetTransferExposedNs()),
		iDecode:   part(t.GetDecodeNs()),
	}
}

// joined fits the client's dispatch and the server's stages into total, and names
// the rest other. The server may have had the request before the client noted that
// it was sent; then stages are longer together than the total, and the dispatch is
// shortened. What is too long even then, because tokens of a first try reached the
// client before the second began, is scaled down.
func joined(dispatch float64, server parts, total float64) parts {
	sum := server.sum()
	if sum > total {
		return server.scaled(total)
	}
	server[iDispatch] = min(dispatch, total-sum)
	server[iOther] = max(total-sum-server[iDispatch], 0)
	return server
}
