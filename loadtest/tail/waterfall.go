package tail

import inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

// slowestEach is the number of requests shown per latency.
const slowestEach = 10

// slowest picks the slowest requests of each view, those by TTFT first, without
// duplicates.
func slowest(views []*view) []Waterfall {
	var out []Waterfall
	picked := map[int]bool{}
	for _, v := range views {
		n := len(v.budgets)
		for k := n - 1; k >= max(n-slowestEach, 0); k-- {
			b := v.budgets[k]
			if picked[b.record.Index] {
				continue
			}
			picked[b.record.Index] = true
			w := b.waterfall()
			w.By = v.latency
			out = append(out, w)
		}
	}
	return out
}

// waterfall puts the stages in sequence. Time that no stage covers is split between
// before and after the first token. The worker's queue comes after the reservation if it
// was the decode worker's, otherwise before. Empty spans are omitted.
func (b *budget) waterfall() Waterfall {
	r := b.record
	w := Waterfall{
		Index: r.Index, ID: r.ID, DueMs: ms(r.Due), TTFTMs: b.ttftMs, E2EMs: b.e2eMs, Tokens: r.OutputTokens,
		Prefill: r.Route.GetPrefill(), Decode: r.Route.GetDecode(),
	}
	at := 0.0
	add := func(stage Stage, length float64) {
		if length <= 0 {
			return
		}
		w.Spans = append(w.Spans, Span{Stage: stage, FromMs: at, ToMs: at + length})
		at += length
	}
	router := b.e2e[iQueue] - b.workerQueueMs
	otherBefore := min(b.ttft[iOther], b.e2e[iOther])
	add(Dispatch, b.e2e[iDispatch])
	add(Tokenize, b.e2e[iTokenize])
	add(Retried, b.e2e[iRetried])
	add(Queue, router)
	add(Decide, b.e2e[iDecide])
	if r.Route.GetMode() == inferencev1.Mode_MODE_AGGREGATED {
		add(Queue, b.workerQueueMs)
		add(Reserve, b.e2e[iReserve])
	} else {
		add(Reserve, b.e2e[iReserve])
		add(Queue, b.workerQueueMs)
	}
	add(Prefill, b.e2e[iPrefill])
	add(Other, otherBefore)
	add(TransferExposed, b.e2e[iTransfer])
	add(Decode, b.e2e[iDecode])
	add(Other, b.e2e[iOther]-otherBefore)
	if last := len(w.Spans) - 1; last >= 0 {
		// The parts add up to the whole except for rounding.
		w.Spans[last].ToMs = max(b.e2eMs, w.Spans[last].FromMs)
	}
	return w
}
