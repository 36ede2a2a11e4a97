package fleet

import (
	"fmt"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// verdict is what became of looking for a worker of one role.
type verdict int

const (
	found   verdict = iota
	wait            // one exists, without room at the moment
	severed         // KV gets from none that exists to the decode worker
	never           // those that exist are too small
	nobody          // none exists
)

// pump gives requests that wait to workers, in order. Behind one that waits for
// room, others that want the same wait too, so that large ones do not starve.
func (f *Fleet) pump(now time.Time) {
	type group struct {
		digest string
		mode   inferencev1.Mode
	}
	blocked := make(map[group]bool)
	defer f.schedule()
	for i := 0; i < len(f.queue.entries); {
		e := f.queue.entries[i]
		g := group{e.request.ModelDigest, e.request.Mode}
		if !now.Before(e.until) {
			f.giveUp(e, f.expired(now, e))
			continue
		}
		// One that lost workers on its way is choosier than the others: it neither
		// waits behind them nor they behind it.
		choosy := len(e.request.Failures) > 0 || e.request.Lineage != ""
		if blocked[g] && !choosy {
			e.noWorkerSince = time.Time{} // there is a worker, without room
			i++
			continue
		}
		switch result, refusal := f.decide(now, e); result {
		case found:
			f.queue.remove(e.request.ID)
		case never, severed:
			f.giveUp(e, refusal)
		case wait:
			e.noWorkerSince = time.Time{}
			blocked[g] = blocked[g] || !choosy
			i++
		case nobody:
			if e.noWorkerSince.IsZero() {
				e.noWorkerSince = now
			}
			if now.Sub(e.noWorkerSince) >= f.config.NoWorkerGrace {
				f.giveUp(e, refusal)
				continue
			}
			i++
		}
	}
}

// schedule notes when the queue has to be looked at again, if nothing happens.
func (f *Fleet) schedule() {
	f.queue.due = time.Time{}
	for _, e := range f.queue.entries {
		f.queue.soon(e.until)
		if !e.noWorkerSince.IsZero() {
			f.queue.soon(e.noWorkerSince.Add(f.config.NoWorkerGrace))
		}
	}
}

func (f *Fleet) giveUp(e *entry, r Refusal) {
	f.queue.remove(e.request.ID)
	f.leave(e.request.Tenant)
	f.refuse(e.request.ID, r)
}

// decide looks for workers for e and, if it finds them, dispatches it: the
// decode worker first, since it has to hold the result, then the mode, then the
// prefill worker.
func (f *Fleet) decide(now time.Time, e *entry) (verdict, Refusal) {
	r := &e.request
	f.looks++
	l := &looking{now: now, entry: e, request: r, record: &controlv1.Decision{}, number: f.looks}
	record := l.record
	e.pool = controlv1.Role_ROLE_DECODE
	forced := r.Mode == inferencev1.Mode_MODE_DISAGGREGATED

	decodes := f.look(l, controlv1.Role_ROLE_DECODE, nil)
	if decodes.verdict != found {
		return decodes.verdict, f.refusal(e, decodes, "decode worker")
	}
	var prefills outlook
	decode := f.choose(decodes.options)
	wantPrefill := f.disaggregates(r, decode.uncached)
	if wantPrefill {
		decode, prefills = f.pair(l, decodes, decode)
		if forced && prefills.verdict != found {
			e.pool = controlv1.Role_ROLE_PREFILL
			return prefills.verdict, f.refusal(e, prefills, "prefill worker that can send to a decode worker")
		}
	}

	var prefill *option
	fallback := false
	unreached, whyUnreached, isUnreached := r.unreached()
	switch {
	case r.Mode == inferencev1.Mode_MODE_AGGREGATED:
		record.Reason = "aggregated mode was asked for"
	case !wantPrefill && isUnreached && decode.uncached >= f.threshold():
		fallback = true
		record.Reason = fmt.Sprintf("one worker does all, since KV did not get from %s: %s", unreached, whyUnreached)
	case !wantPrefill:
		record.Reason = fmt.Sprintf("%d uncached tokens on %s are fewer than %d: a transfer costs more than it saves",
			decode.uncached, decode.worker.ref.ID, f.threshold())
	case prefills.verdict != found && prefills.whyBroken != "":
		fallback = true
		record.Reason = fmt.Sprintf("one worker does all, since KV does not get from %s at the moment: %s", prefills.broken, prefills.whyBroken)
	case prefills.verdict != found:
		fallback = true
		record.Reason = "no prefill worker: " + prefills.why
	default:
		prefill = f.choose(prefills.options)
		if forced {
			record.Reason = "disaggregated mode was asked for"
		} else {
			record.Reason = fmt.Sprintf("%d uncached tokens on %s are at least %d: prefill on %s, predicted %.1f ms after %.1f ms of queue",
				decode.uncached, decode.worker.ref.ID, f.threshold(), prefill.worker.ref.ID, prefill.prefillMs, prefill.queueMs)
		}
	}
	if refusal, ok := f.misses(now, r, decode, prefill); ok {
		return never, refusal
	}

	record.Mode = inferencev1.Mode_MODE_AGGREGATED
	record.Decode = decode.worker.ref.ID
	action := Dispatch{ID: r.ID, Decode: decode.worker.ref, ModelDigest: decode.worker.record.GetModelDigest(), Lineage: decode.worker.lineage(), Fallback: fallback, Decision: record}
	d := &dispatched{tenant: r.Tenant, decode: decode.worker}
	atDecode := &share{at: now, context: r.Tokens, blocks: need(decode.worker, r, controlv1.Role_ROLE_DECODE)}
	if prefill == nil {
		atDecode.tokens = decode.uncached
	} else {
		record.Mode = inferencev1.Mode_MODE_DISAGGREGATED
		record.Prefill = prefill.worker.ref.ID
		action.Prefill = prefill.worker.ref
		d.prefill = prefill.worker
		f.used(now, path{prefill.worker.ref, decode.worker.ref}, r.ID)
		if action.Source = prefill.supply.hint(); action.Source != nil {
			record.Source, record.SourceBlocks = action.Source.GetWorkerId(), action.Source.GetBlocks()
		}
		prefill.worker.add(r.ID, &share{at: now, tokens: prefill.uncached - prefill.fetched, context: r.Tokens, blocks: need(prefill.worker, r, controlv1.Role_ROLE_PREFILL)})
	}
	decode.worker.add(r.ID, atDecode)
	f.running[r.ID] = d
	f.out = append(f.out, action)
	return found, Refusal{}
}

// disaggregates reports whether r's prompt is for a prefill worker, if one can send
// to a decode worker that lacks so many tokens of it. In mode auto, one whose KV once
// had no way is not put to another risk.
func (f *Fleet) disaggregates(r *Request, uncached int) bool {
	switch r.Mode {
	case inferencev1.Mode_MODE_DISAGGREGATED:
		return true
	case inferencev1.Mode_MODE_AGGREGATED:
		return false
	}
	_, _, unreached := r.unreached()
	return !unreached && uncached >= f.threshold()
}
