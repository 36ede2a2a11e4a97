package fleet

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// option is one worker that was looked at for one request.
type option struct {
	worker    *worker
	record    *controlv1.Candidate
	step      latency.Model
	cached    int // tokens
	uncached  int
	queueMs   float64
	prefillMs float64
	tpotMs    float64
	firstMs   float64 // what the first token costs: the part of costMs beside tpotMs
	costMs    float64
	// soft: it failed in this request before and is taken only if nothing else
	// is there.
	soft bool
}

// verdict is what became of looking for a worker of one role.
type verdict int

const (
	found  verdict = iota
	wait           // one exists, without room at the moment
	never          // those that exist are too small
	nobody         // none exists
)

// pump gives requests that wait to workers, in order. Behind one that waits for
// room, others that want the same wait too, so that large ones do not starve.
func (f *Fleet) pump(now time.Time) {
	type group struct {
		digest string
		mode   inferencev1.Mode
	}
	blocked := make(map[group]bool)
	for i := 0; i < len(f.queue.entries); {
		e := f.queue.entries[i]
		g := group{e.request.ModelDigest, e.request.Mode}
		if !now.Before(e.until) {
			f.giveUp(now, e, f.expired(now, e))
			continue
		}
		// One that lost workers on its way is choosier than the others: it neither
		// waits behind them nor they behind it.
		choosy := len(e.request.Failures) > 0 || e.request.Class != ""
		if blocked[g] && !choosy {
			e.noWorkerSince = time.Time{} // there is a worker, without room
			i++
			continue
		}
		switch result, refusal := f.decide(now, e); result {
		case found:
			f.queue.remove(e.request.ID)
		case never:
			f.giveUp(now, e, refusal)
		case wait:
			e.noWorkerSince = time.Time{}
			blocked[g] = blocked[g] || !choosy
			i++
		case nobody:
			if e.noWorkerSince.IsZero() {
				e.noWorkerSince = now
			}
			if now.Sub(e.noWorkerSince) >= f.config.NoWorkerGrace {
				f.giveUp(now, e, refusal)
				continue
			}
			i++
		}
	}
}

func (f *Fleet) giveUp(_ time.Time, e *entry, r Refusal) {
	f.queue.remove(e.request.ID)
	f.leave(e.request.Tenant)
	f.refuse(e.request.ID, r)
}

func (f *Fleet) expired(now time.Time, e *entry) Refusal {
	waited := now.Sub(e.enqueued).Round(time.Millisecond)
	switch {
	case !e.request.Deadline.IsZero() && !now.Before(e.request.Deadline):
		return Refusal{Code: codes.DeadlineExceeded, Reason: ReasonDeadline,
			Message: fmt.Sprintf("the request's deadline came after %s in the queue", waited)}
	case !e.noWorkerSince.IsZero():
		return f.nobody(e, roleName(e.pool)+" worker")
	}
	return Refusal{codes.ResourceExhausted, ReasonQueueTimeout, "",
		fmt.Sprintf("no %s worker had room within %s; retry later", roleName(e.pool), waited), max(waited/2, time.Second)}
}

// decide looks for workers for e and, if it finds them, dispatches it: the
// decode worker first, since it has to hold the result, then the mode, then the
// prefill worker.
func (f *Fleet) decide(now time.Time, e *entry) (verdict, Refusal) {
	r := &e.request
	l := &looking{now: now, request: r, record: &controlv1.Decision{}, matches: make(map[matchKey]map[string]int)}
	record := l.record
	e.pool = controlv1.Role_ROLE_DECODE
	forced := r.Mode == inferencev1.Mode_MODE_DISAGGREGATED

	decodes := f.look(l, controlv1.Role_ROLE_DECODE, nil)
	if decodes.verdict != found {
		return decodes.verdict, f.refusal(e, decodes, "decode worker")
	}
	// With disaggregation forced, a decode worker that no prefill worker can send
	// to is no choice, however cheap.
	var prefills outlook
	decode := f.choose(decodes.options)
	wantPrefill := forced || r.Mode != inferencev1.Mode_MODE_AGGREGATED && decode.uncached >= f.threshold()
	if wantPrefill {
		looked := len(record.Candidates)
		prefills = f.look(l, controlv1.Role_ROLE_PREFILL, decode.worker)
		for rest := decodes.options; prefills.verdict != found && forced; {
			rest = without(rest, decode)
			if len(rest) == 0 {
				break
			}
			decode = f.choose(rest)
			record.Candidates = record.Candidates[:looked] // each worker once
			prefills = f.look(l, controlv1.Role_ROLE_PREFILL, decode.worker)
		}
		if forced && prefills.verdict != found {
			e.pool = controlv1.Role_ROLE_PREFILL
			return prefills.verdict, f.refusal(e, prefills, "prefill worker that can send to a decode worker")
		}
	}

	var prefill *option
	fallback := false
	switch {
	case r.Mode == inferencev1.Mode_MODE_AGGREGATED:
		record.Reason = "aggregated mode was asked for"
	case !wantPrefill:
		record.Reason = fmt.Sprintf("%d uncached tokens on %s are fewer than %d: a transfer costs more than it saves",
			decode.uncached, decode.worker.ref.ID, f.threshold())
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
	action := Dispatch{ID: r.ID, Decode: decode.worker.ref, Class: decode.worker.class(), Fallback: fallback, Decision: record}
	d := &dispatched{tenant: r.Tenant, decode: decode.worker}
	atDecode := &share{at: now, context: r.Tokens, blocks: decode.worker.blocksFor(r.Tokens + r.MaxNew)}
	if prefill == nil {
		atDecode.tokens = decode.uncached
	} else {
		record.Mode = inferencev1.Mode_MODE_DISAGGREGATED
		record.Prefill = prefill.worker.ref.ID
		action.Prefill = prefill.worker.ref
		d.prefill = prefill.worker
		prefill.worker.add(r.ID, &share{at: now, tokens: prefill.uncached, context: r.Tokens, blocks: prefill.worker.blocksFor(r.Tokens + 1)})
	}
	decode.worker.add(r.ID, atDecode)
	f.running[r.ID] = d
	f.out = append(f.out, action)
	return found, Refusal{}
}

// outlook is what there is of one role.
type outlook struct {
	verdict verdict
	options []*option
	// why says why nothing was found, in words.
	why string
	// largestTokens is the most tokens of KV that a worker which is too small
	// holds.
	largestTokens int
}

// looking is one search for workers.
type looking struct {
	now     time.Time
	request *Request
	record  *controlv1.Decision
	matches map[matchKey]map[string]int // blocks held, by worker
}

// matchKey is what block hashes depend on beside the tokens.
type matchKey struct {
	class       string
	blockTokens int
}

// cached is how many tokens of the prompt w holds. The last token is always
// computed: the first sampled one comes from it.
func (f *Fleet) cached(l *looking, w *worker) int {
	key := matchKey{w.class(), int(w.record.GetCapacity().GetBlockTokens())}
	if l.request.Hashes == nil || key.blockTokens == 0 || w.record.GetModelDigest() != l.request.ModelDigest {
		return 0
	}
	held, ok := l.matches[key]
	if !ok {
		held = f.index.Match(l.request.Hashes(key.class, key.blockTokens))
		l.matches[key] = held
	}
	return min(held[w.ref.ID]*key.blockTokens, max(l.request.Tokens-1, 0))
}

// look examines every worker of a role. With a decode worker given, only those
// that can send to it count.
func (f *Fleet) look(l *looking, role controlv1.Role, to *worker) outlook {
	now, r, record := l.now, l.request, l.record
	var options, soft []*option
	var full, small int
	var example string
	out := outlook{verdict: nobody, why: "none is registered"}
	for _, w := range f.order {
		if w.record.GetRole() != role {
			continue
		}
		o := f.option(l, role, w)
		record.Candidates = append(record.Candidates, o.record)
		later := false
		o.record.Excluded, later, o.soft = f.excluded(now, r, role, w, to)
		if o.record.Excluded != "" {
			example = w.ref.ID + ": " + o.record.Excluded
			switch {
			case later:
				full++
			case tooSmall(w, r, role):
				small++
				out.largestTokens = max(out.largestTokens, int(w.record.GetCapacity().GetBlocks()*w.record.GetCapacity().GetBlockTokens()))
			}
			continue
		}
		if o.soft {
			soft = append(soft, o)
		} else {
			options = append(options, o)
		}
	}
	if len(options) == 0 {
		options = soft
	}
	out.options = options
	if example != "" {
		out.why = example
	}
	switch {
	case len(options) > 0:
		out.verdict = found
	case full > 0:
		out.verdict = wait
	case small > 0:
		out.verdict = never
	}
	return out
}

// excluded says why a worker cannot take a request, empty if it can; whether it
// could later; and whether it failed before but may be tried if need be.
func (f *Fleet) excluded(now time.Time, r *Request, role controlv1.Role, w, to *worker) (why string, later, soft bool) {
	for _, failure := range r.Failures {
		if failure.Worker == w.ref && !failure.Busy {
			if failure.Gone {
				return "it failed in this request", false, false
			}
			soft = true
		}
	}
	switch {
	case w.record.GetModelDigest() != r.ModelDigest:
		return "it serves another model", false, false
	case w.record.GetState() == controlv1.WorkerState_WORKER_STATE_DRAINING:
		return "it drains", false, false
	case !w.connected:
		return "no connection", false, false
	case r.Class != "" && w.class() != r.Class:
		return "another arithmetic class than the tokens so far: " + w.class(), false, false
	case to != nil && w.record.GetLayoutDigest() != to.record.GetLayoutDigest():
		return "KV layout differs from that of " + to.ref.ID, false, false
	case tooSmall(w, r, role):
		return fmt.Sprintf("too small: %d blocks needed, %d in all", need(w, r, role), w.record.GetCapacity().GetBlocks()), false, false
	case now.Before(w.busyUntil):
		return "it refused or failed a moment ago", true, false
	}
	if why := w.room(w.estimate(now, f.config.LoadStale), need(w, r, role)); why != "" {
		return why, true, false
	}
	return "", false, soft
}

// need is how many blocks a request takes of a worker.
func need(w *worker, r *Request, role controlv1.Role) int {
	if role == controlv1.Role_ROLE_PREFILL {
		return w.blocksFor(r.Tokens + 1)
	}
	return w.blocksFor(r.Tokens + r.MaxNew)
}

func tooSmall(w *worker, r *Request, role controlv1.Role) bool {
	blocks := int(w.record.GetCapacity().GetBlocks())
	return blocks > 0 && need(w, r, role) > blocks
}

// option computes the terms of a worker's cost.
func (f *Fleet) option(l *looking, role controlv1.Role, w *worker) *option {
	now, r := l.now, l.request
	o := &option{worker: w, step: w.step()}
	e := w.estimate(now, f.config.LoadStale)
	o.cached = f.cached(l, w)
	o.uncached = r.Tokens - o.cached
	o.queueMs = w.compute(o.step, e.tokens, 0)
	o.prefillMs = w.compute(o.step, o.uncached, o.cached)
	o.firstMs = o.queueMs + o.prefillMs
	o.costMs = o.firstMs
	if role == controlv1.Role_ROLE_DECODE {
		m := o.step
		o.tpotMs = m.BaseMs + m.PerTokenMs*float64(e.sequences+1) + m.PerContextTokenMs*float64(e.context+r.Tokens)
		if r.Mode == inferencev1.Mode_MODE_DISAGGREGATED || r.Mode != inferencev1.Mode_MODE_AGGREGATED && o.uncached >= f.threshold() {
			// Its prompt comes by transfer: what counts is what has to be sent.
			o.firstMs = float64(o.uncached) * w.bytesPerToken() / f.config.TransferBytesPerSecond * 1000
			o.queueMs, o.prefillMs = 0, 0
		}
		o.costMs = o.firstMs + o.tpotMs*float64(min(r.MaxNew, f.config.TPOTHorizonTokens))
	}
	o.record = &controlv1.Candidate{
		WorkerId: w.ref.ID, Role: role,
		QueueMs: o.queueMs, PrefillMs: o.prefillMs, TpotMs: o.tpotMs, CostMs: o.costMs,
		CachedTokens: uint32(max(o.cached, 0)), InFlight: uint32(len(w.own)),
	}
	return o
}

// choose picks at random among those near the least cost. How near is measured
// by the time to the first token alone: the time for output tokens is much the
// same everywhere and would hide what a cached prefix saves.
func (f *Fleet) choose(options []*option) *option {
	best := options[0]
	for _, o := range options {
		if o.costMs < best.costMs {
			best = o
		}
	}
	limit := best.costMs + best.firstMs*f.config.NearBest + nearBestMs
	var near []*option
	for _, o := range options {
		if o.costMs <= limit {
			near = append(near, o)
		}
	}
	return near[f.random.IntN(len(near))]
}

// nearBestMs is the difference of cost that no prediction can resolve.
const nearBestMs = 0.5

func without(options []*option, gone *option) []*option {
	var out []*option
	for _, o := range options {
		if o != gone {
			out = append(out, o)
		}
	}
	return out
}

// misses says whether the request's objective is out of reach on the workers
// chosen. A worker that has measured nothing yet is given the benefit of the
// doubt.
func (f *Fleet) misses(now time.Time, r *Request, decode, prefill *option) (Refusal, bool) {
	if r.Attempt > 0 {
		return Refusal{}, false
	}
	first := decode
	if prefill != nil {
		first = prefill
	}
	if r.TTFT > 0 {
		elapsed := now.Sub(r.Arrived)
		predicted := elapsed
		var queue time.Duration
		if first.step.Samples > 0 {
			queue = milliseconds(first.queueMs)
			predicted += queue + milliseconds(first.prefillMs)
		}
		if predicted > r.TTFT {
			return Refusal{codes.ResourceExhausted, ReasonSLO, "",
				fmt.Sprintf("predicted time to first token %s exceeds slo.ttft %s; retry later or ask for less",
					predicted.Round(time.Microsecond), r.TTFT), max(queue, time.Second)}, true
		}
	}
	if r.TPOT > 0 && decode.step.Samples > 0 {
		if predicted := milliseconds(decode.tpotMs); predicted > r.TPOT {
			return Refusal{codes.ResourceExhausted, ReasonSLO, "",
				fmt.Sprintf("predicted time per output token %s exceeds slo.tpot %s; retry later or ask for less",
					predicted.Round(time.Microsecond), r.TPOT), time.Second}, true
		}
	}
	return Refusal{}, false
}

func milliseconds(ms float64) time.Duration {
	return time.Duration(min(ms, 1e12) * float64(time.Millisecond))
}

// refusal is the answer if e cannot be served because of what o says.
func (f *Fleet) refusal(e *entry, o outlook, what string) Refusal {
	if o.verdict == never {
		return Refusal{Code: codes.InvalidArgument, Reason: ReasonNeverFits, Field: "max_tokens",
			Message: fmt.Sprintf("prompt and completion take %d tokens of KV, and the largest %s holds %d; ask for fewer tokens",
				e.request.Tokens+e.request.MaxNew, what, o.largestTokens)}
	}
	r := f.nobody(e, what)
	r.Message += " (" + o.why + ")"
	return r
}

// nobody is the answer when no worker could ever take e.
func (f *Fleet) nobody(e *entry, what string) Refusal {
	r := Refusal{Code: codes.Unavailable, Reason: ReasonNoWorkers, RetryAfter: time.Second,
		Message: fmt.Sprintf("no %s serves model %q; retry when one has registered", what, e.request.Model)}
	if e.request.Attempt > 0 {
		r.Reason = ReasonWorkerLost
		r.Message = fmt.Sprintf("a worker failed and there is no other %s for model %q; retry when one has registered", what, e.request.Model)
	}
	return r
}

func roleName(role controlv1.Role) string {
	if role == controlv1.Role_ROLE_PREFILL {
		return "prefill"
	}
	return "decode"
}
