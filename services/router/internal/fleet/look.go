package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// outlook is what there is of one role.
type outlook struct {
	verdict verdict
	options []*option
	// others could take it too, and are less likely to.
	others []*option
	// why says why nothing was found, in words.
	why string
	// full is how many have no room at the moment.
	full int
	// broken is the last of the paths that stood in the way of those which have, and
	// whyBroken why it does.
	broken    path
	whyBroken string
	// largestTokens is the most tokens of KV that a worker which is too small
	// holds.
	largestTokens int
}

// looking is one search for workers.
type looking struct {
	now     time.Time
	entry   *entry
	request *Request
	record  *controlv1.Decision
	number  uint64 // of the search
	// unmeasured is the step time of workers of the role being looked at that have
	// measured nothing.
	unmeasured latency.Model
}

// cached is how many tokens of the prompt w holds. The last token is always
// computed: the first sampled one comes from it.
func (f *Fleet) cached(l *looking, w *worker) int {
	p := f.prefix(l, w)
	if p == nil {
		return 0
	}
	return min(p.held[w.ref.ID]*int(w.record.GetCapacity().GetBlockTokens()), max(l.request.Tokens-1, 0))
}

// prefix is the request's block hashes as w has them, and who holds how many of
// them; nil if none are known.
func (f *Fleet) prefix(l *looking, w *worker) *prefix {
	key := prefixKey{w.record.GetModelDigest(), w.class(), int(w.record.GetCapacity().GetBlockTokens())}
	if l.request.Hashes == nil || key.blockTokens == 0 || !serves(w, l.request) {
		return nil
	}
	p := l.entry.prefixes[key]
	if p == nil {
		p = &prefix{hashes: l.request.Hashes(key.modelDigest, key.class, key.blockTokens), held: make(map[string]int)}
		l.entry.prefixes[key] = p
	}
	if p.look != l.number {
		f.index.MatchInto(p.held, p.hashes)
		p.look = l.number
	}
	return p
}

// look examines every worker of a role. With a decode worker given, only those
// that can send to it count.
func (f *Fleet) look(l *looking, role controlv1.Role, to *worker) outlook {
	now, r, record := l.now, l.request, l.record
	var options, silent, soft []*option
	var small int
	var example string
	l.unmeasured = f.unmeasuredStep(role)
	out := outlook{verdict: nobody, why: "none is registered"}
	for _, w := range f.order {
		if w.record.GetRole() != role {
			continue
		}
		o := f.option(l, role, w)
		record.Candidates = append(record.Candidates, o.record)
		why, later, failedBefore := f.excluded(now, r, role, w, to)
		if to != nil && (why == "" || later) {
			p := path{w.ref, to.ref}
			if severed, soon := f.severed(now, r, p); severed != "" {
				why, later = "KV does not get from it to "+to.ref.ID+": "+severed, soon
				out.broken, out.whyBroken = p, severed
			}
		}
		o.record.Excluded, o.soft = why, failedBefore
		if why != "" {
			example = w.ref.ID + ": " + why
			switch {
			case later:
				out.full++
			case tooSmall(w, r, role):
				small++
				out.largestTokens = max(out.largestTokens, int(w.record.GetCapacity().GetBlocks())*int(w.record.GetCapacity().GetBlockTokens()))
			}
			continue
		}
		switch {
		case o.soft || w.hung(now):
			soft = append(soft, o)
		case w.silent(now, f.config.LoadStale):
			silent = append(silent, o)
		default:
			options = append(options, o)
		}
	}
	// One that does not report may hang. When none does, it is the reports that do
	// not come through, and all are alike.
	switch {
	case len(options) > 0:
		out.options, out.others = options, slices.Concat(silent, soft)
	case len(silent) > 0:
		out.options, out.others = silent, soft
	default:
		out.options, out.others = soft, nil
	}
	if example != "" {
		out.why = example
	}
	switch {
	case len(out.options) > 0:
		out.verdict = found
	case out.full > 0:
		out.verdict = wait
	case out.whyBroken != "":
		out.verdict = severed
	case small > 0:
		out.verdict = never
	}
	return out
}

// excluded says why a worker cannot take a request, empty if it can; whether it
// could later; and whether it failed before but may be tried if need be.
func (f *Fleet) excluded(now time.Time, r *Request, role controlv1.Role, w, to *worker) (why string, later, soft bool) {
	for _, failure := range r.Failures {
		if (failure.Worker == w.ref || failure.Unreached == w.ref) && !failure.Busy {
			if failure.Gone {
				return "it failed in this request", false, false
			}
			soft = true
		}
	}
	switch {
	case !serves(w, r):
		return "it serves another model: " + w.record.GetModel(), false, false
	case w.record.GetState() == controlv1.WorkerState_WORKER_STATE_DRAINING:
		return "it drains", false, false
	case !w.connected:
		return "no connection", false, false
	case r.Lineage != "" && w.lineage() != r.Lineage:
		return "other weights or arithmetic than the tokens so far: " + w.lineage(), false, false
	case to != nil && w.record.GetLayoutDigest() != to.record.GetLayoutDigest():
		return fmt.Sprintf("its KV is %s, that of %s is %s: give both the same flags", layoutText(w.record), to.ref.ID, layoutText(to.record)), false, false
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

// layoutText names what workers' KV most often differs in, for people.
func layoutText(r *controlv1.WorkerRecord) string {
	l := r.GetLayout()
	return fmt.Sprintf("%s in blocks of %d tokens (layout %#x)", l.GetArithmeticClass(), l.GetBlockTokens(), r.GetLayoutDigest())
}

// serves reports whether a worker has the model that a request is for: by
// digest where the router knows it, else by name.
func serves(w *worker, r *Request) bool {
	if r.ModelDigest != "" {
		return w.record.GetModelDigest() == r.ModelDigest
	}
	return w.record.GetModel() == r.Model
}

// positions is for how many tokens a worker of a role keeps KV: the last one that
// is generated is never computed with.
func positions(r *Request, role controlv1.Role) int {
	if role == controlv1.Role_ROLE_PREFILL {
		return r.Tokens
	}
	return r.Tokens + max(r.MaxNew-1, 0)
}

// need is how many blocks a request takes of a worker.
func need(w *worker, r *Request, role controlv1.Role) int {
	return w.blocksFor(positions(r, role))
}

func tooSmall(w *worker, r *Request, role controlv1.Role) bool {
	blocks := int(w.record.GetCapacity().GetBlocks())
	return blocks > 0 && need(w, r, role) > blocks
}

// option computes the terms of a worker's cost.
func (f *Fleet) option(l *looking, role controlv1.Role, w *worker) *option {
	now, r := l.now, l.request
	e := w.estimate(now, f.config.LoadStale)
	step, measured := w.measured()
	// What an idle worker measured long ago may have been a bad moment. Without
	// work it would never learn better.
	if idle := e.sequences == 0 && now.Sub(w.usedAt) >= revisitAfter; !measured || idle && slower(step, l.unmeasured) {
		step = l.unmeasured
	}
	o := &option{worker: w, step: step}
	o.cached = f.cached(l, w)
	o.uncached = r.Tokens - o.cached
	o.queueMs = w.compute(o.step, e.tokens, 0)
	if role == controlv1.Role_ROLE_PREFILL {
		o.supply = f.supply(l, w, o.cached)
	}
	o.prefillMs, o.fetched = f.prefillTime(w, o.step, r.Tokens, o.cached, o.supply)
	o.firstMs = o.queueMs + o.prefillMs
	o.costMs = o.firstMs
	if role == controlv1.Role_ROLE_DECODE {
		m := o.step
		o.tpotMs = m.BaseMs + m.PerTokenMs*float64(e.sequences+1) + m.PerContextTokenMs*float64(e.context+r.Tokens)
		if f.disaggregates(r, o.uncached) {
			// Its prompt comes by transfer: what counts is what has to be sent.
			o.firstMs = float64(o.uncached) * w.bytesPerToken() / f.config.TransferBytesPerSecond * 1000
			o.queueMs, o.prefillMs = 0, 0
		}
		o.costMs = o.firstMs + o.tpotMs*float64(min(r.MaxNew, f.config.TPOTHorizonTokens))
	}
	o.record = &controlv1.Candidate{
		WorkerId: w.ref.ID, Role: role,
		QueueMs: o.queueMs, PrefillMs: o.prefillMs, TpotMs: o.tpotMs, CostMs: o.costMs,
		CachedTokens: uint32(max(o.cached, 0)), FetchTokens: uint32(o.fetched), InFlight: uint32(len(w.own)),
	}
	return o
}

// revisitAfter is how long a worker may be idle because of what it measured,
// before it is given a chance to measure anew.
const revisitAfter = 10 * time.Second

// slower reports whether steps take longer by a than by b.
func slower(a, b latency.Model) bool {
	return a.BaseMs+a.PerTokenMs > b.BaseMs+b.PerTokenMs || a.PerContextTokenMs > b.PerContextTokenMs
}

// choose picks among those near the least cost the ones with the fewest of our
// requests, and at random among them. How near is measured
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
	if len(near) == 0 {
		near = options // costs that compare with nothing tell nothing
	}
	fewest := slices.MinFunc(near, func(a, b *option) int { return cmp.Compare(len(a.worker.own), len(b.worker.own)) })
	near = slices.DeleteFunc(slices.Clone(near), func(o *option) bool { return len(o.worker.own) > len(fewest.worker.own) })
	return near[f.random.IntN(len(near))]
}

// nearBestMs is the difference of cost that no prediction can resolve.
const nearBestMs = 0.5

// option is one worker that was looked at for one request.
type option struct {
	worker    *worker
	record    *controlv1.Candidate
	step      latency.Model
	cached    int // tokens
	uncached  int
	supply    supply
	fetched   int // tokens that are predicted to come from it
	queueMs   float64
	prefillMs float64
	tpotMs    float64
	firstMs   float64 // what the first token costs: the part of costMs beside tpotMs
	costMs    float64
	// soft: it failed in this request before and is taken only if nothing else is
	// there.
	soft bool
}
