package tail

import inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

// slowestEach is how many requests are shown for each latency.
const slowestEach = 10

// slowest picks the slowest requests of each view, those by TTFT first; one that is
// among the slowest by both stands once.
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

// waterfall puts the stages one after the other. What no stage covers lies partly
// before the first token came to the client and partly after; the worker's queue is
// where it was: behind the reservation if that was the decode worker's, otherwise
// before it. Spans of no length are left out.
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
		// The sum of the parts is the whole but for floating point.
		w.Spans[last].ToMs = max(b.e2eMs, w.Spans[last].FromMs)
	}
	return w
}
