package scheduler_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// fataler is what a test of either kind can do.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

var _ fataler = (*testing.T)(nil)

// world drives a scheduler with a fake engine and fake transfers, and knows what
// it must never do.
type world struct {
	t         fataler
	config    scheduler.Config
	scheduler *scheduler.Scheduler
	pages     *pages
	now       time.Time

	lives    map[scheduler.SequenceID]*life
	order    []*life // as submitted
	draining bool
	inFlight *scheduler.RunStep
	recent   []written // the steps that must not change: the last, and while it runs the one before
	steps    int
	cache    map[kvcache.Hash]bool // BlocksChanged added up
	actions  []scheduler.Action    // of the last event
}

// life is a sequence as its driver knows it.
type life struct {
	request scheduler.Request
	refused bool
	reason  scheduler.RefuseReason

	table    []kvcache.BlockID
	cached   int // tokens
	reserved bool
	started  bool
	arrived  bool // KVArrived was sent
	drained  bool // TransferDone was sent
	computed int
	output   []int32 // sampled elsewhere, then here
	skipped  int     // steps in a row without a chunk of its prompt

	finished *scheduler.Finished
	released bool

	overtaken int
}

// written is a step and what it was when it was handed out.
type written struct {
	step  scheduler.RunStep
	parts []scheduler.Part
	work  []engine.Sequence
}

func copied(step scheduler.RunStep) written {
	c := written{step: step, parts: slices.Clone(step.Parts), work: slices.Clone(step.Batch.Sequences)}
	for i := range c.work {
		c.work[i].Tokens = slices.Clone(c.work[i].Tokens)
		c.work[i].Blocks = slices.Clone(c.work[i].Blocks)
		if c.work[i].Sample != nil {
			sample := *c.work[i].Sample
			c.work[i].Sample = &sample
		}
	}
	return c
}

func newWorld(t fataler, blocks int, config scheduler.Config) *world {
	t.Helper()
	config.Pool = kvcache.NewPool(blocks, config.BlockTokens, "model", "class")
	s, err := scheduler.New(config)
	if err != nil {
		t.Fatalf("new: %v", err)
	}
	return &world{
		t:         t,
		config:    config,
		scheduler: s,
		pages:     newPages(blocks, config.BlockTokens),
		now:       time.Unix(1000, 0),
		lives:     map[scheduler.SequenceID]*life{},
		cache:     map[kvcache.Hash]bool{},
	}
}

// expected is what the sequence has to give in all, computed alone.
func (w *world) expected(l *life) []int32 {
	r := l.request
	n := min(r.MaxTokens-r.Generated, w.config.ContextTokens-len(r.Tokens))
	if r.Kind == scheduler.PrefillOnly {
		n = 1
	}
	_, output := alone(r.Tokens, r.Sampling.Seed, r.Generated, n, r.Stop)
	return output
}

func (l *life) tokens() []int32 { return append(slices.Clone(l.request.Tokens), l.output...) }

// live says that the sequence may still do something.
func (l *life) live() bool { return !l.refused && l.finished == nil }

func (w *world) submit(r scheduler.Request) *life {
	l := &life{request: r}
	w.lives[r.ID] = l
	w.order = append(w.order, l)
	w.handle(scheduler.Submit{Request: r})
	return l
}

// arrive writes a Receive sequence's KV, and says so with n sampled tokens.
func (w *world) arrive(l *life, n int) {
	kv, _ := alone(l.request.Tokens, 0, 0, 0, nil)
	for i := l.cached; i < len(kv); i++ {
		*w.pages.at(l.table, i) = kv[i]
	}
	l.arrived = true
	sampled := w.expected(l)
	sampled = sampled[:min(n, len(sampled))]
	if l.finished == nil {
		l.output = slices.Clone(sampled)
		l.computed = len(kv)
	}
	w.handle(scheduler.KVArrived{ID: l.request.ID, Sampled: sampled})
}

// lateWrite is what a transfer that is not over may do at any time.
func (w *world) lateWrite(l *life, garbage uint64) {
	for i := l.cached; i < len(l.request.Tokens); i++ {
		*w.pages.at(l.table, i) = garbage + uint64(i)
	}
}

func (w *world) transferDone(l *life) {
	l.drained = true
	w.handle(scheduler.TransferDone{ID: l.request.ID})
}

// finishStep computes the step in flight and says that it is done.
func (w *world) finishStep(compute time.Duration) {
	step := w.inFlight
	done := scheduler.StepDone{Compute: compute}
	for i, work := range step.Batch.Sequences {
		done.Tokens = append(done.Tokens, w.pages.run(work))
		if l := w.lives[step.Parts[i].ID]; l.finished == nil {
			l.computed = work.Start + len(work.Tokens)
		}
	}
	w.inFlight = nil
	w.handle(done)
}

func (w *world) failStep(err error) {
	for _, work := range w.inFlight.Batch.Sequences {
		w.pages.spoil(work, 77)
	}
	w.inFlight = nil
	w.handle(scheduler.StepDone{Err: err})
}

// handle passes an event on and plays the driver for the answer.
func (w *world) handle(event scheduler.Event) {
	w.t.Helper()
	w.actions = w.scheduler.Handle(w.now, event)
	for _, action := range w.actions {
		switch a := action.(type) {
		case scheduler.Refused:
			l := w.life(a.ID)
			if l.refused || l.table != nil || l.finished != nil {
				w.t.Fatalf("%d: refused after it was taken", a.ID)
			}
			l.refused, l.reason = true, a.Reason
		case scheduler.Reserved:
			w.reserved(a)
		case scheduler.Started:
			w.started(a)
		case scheduler.Sampled:
			w.sampled(a)
		case scheduler.Finished:
			w.finished(a)
		case scheduler.Released:
			w.released(a)
		case scheduler.BlocksChanged:
			w.changed(a)
		case scheduler.RunStep:
			w.runStep(a)
		}
	}
	w.checkBlocks()
}

func (w *world) life(id scheduler.SequenceID) *life {
	w.t.Helper()
	l, ok := w.lives[id]
	if !ok {
		w.t.Fatalf("%d: nobody submitted it", id)
	}
	return l
}

func (w *world) reserved(a scheduler.Reserved) {
	l := w.life(a.ID)
	if l.reserved || !l.live() || l.request.Kind != scheduler.Receive {
		w.t.Fatalf("%d: reserved twice, or at the wrong time", a.ID)
	}
	l.reserved, l.table, l.cached = true, a.Blocks, a.CachedTokens
	w.taken(l)
}

func (w *world) started(a scheduler.Started) {
	l := w.life(a.ID)
	if l.started || !l.live() || (l.request.Kind == scheduler.Receive) != l.arrived {
		w.t.Fatalf("%d: started twice, or at the wrong time", a.ID)
	}
	l.started = true
	if l.request.Kind == scheduler.Receive {
		if !slices.Equal(l.table, a.Blocks) || l.cached != a.CachedTokens {
			w.t.Fatalf("%d: started with other blocks than it reserved", a.ID)
		}
		return
	}
	if a.CachedTokens >= len(l.request.Tokens) {
		w.t.Fatalf("%d: nothing left to compute", a.ID)
	}
	l.table, l.cached, l.computed = a.Blocks, a.CachedTokens, a.CachedTokens
	w.taken(l)
}

// taken checks what a sequence got its blocks with, and whom it overtook.
func (w *world) taken(l *life) {
	if l.cached%w.config.BlockTokens != 0 {
		w.t.Fatalf("%d: %d cached tokens are not whole blocks", l.request.ID, l.cached)
	}
	kv, _ := alone(l.request.Tokens[:l.cached], 0, 0, 0, nil)
	if got := w.pages.read(l.table, l.cached); !slices.Equal(got, kv) {
		w.t.Fatalf("%d: the cached blocks hold the KV of other tokens", l.request.ID)
	}
	for _, other := range w.order {
		if other == l {
			break
		}
		if other.live() && other.table == nil {
			other.overtaken++
			if limit := w.config.MaxOvertakes; limit > 0 && other.overtaken > limit {
				w.t.Fatalf("%d was overtaken %d times, allowed are %d", other.request.ID, other.overtaken, limit)
			}
		}
	}
}

func (w *world) sampled(a scheduler.Sampled) {
	l := w.life(a.ID)
	want := w.expected(l)
	at := a.Offset - l.request.Generated
	if !l.live() || !l.started || at != len(l.output) || at >= len(want) || a.Token != want[at] {
		w.t.Fatalf("%d: token %d at offset %d after %v; alone it gives %v", a.ID, a.Token, a.Offset, l.output, want)
	}
	l.output = append(l.output, a.Token)
}

func (w *world) finished(a scheduler.Finished) {
	l := w.life(a.ID)
	if !l.live() {
		w.t.Fatalf("%d: a second end", a.ID)
	}
	l.finished = &a
	want := w.expected(l)
	last := func() int32 { return l.output[len(l.output)-1] }
	complete := slices.Equal(l.output, want)
	stopped := complete && slices.Contains(l.request.Stop, last())
	ok := false
	switch a.Reason {
	case scheduler.Stopped:
		ok = stopped
	case scheduler.Length:
		total := l.request.Generated + len(l.output)
		ok = complete && !stopped &&
			(total == l.request.MaxTokens || len(l.tokens()) == w.config.ContextTokens)
	case scheduler.PrefillDone:
		ok = complete && !stopped && l.request.Kind == scheduler.PrefillOnly &&
			l.request.Generated+1 < l.request.MaxTokens
	case scheduler.Cancelled:
		ok = true
	case scheduler.Failed:
		ok = a.Err != nil
	}
	if !ok {
		w.t.Fatalf("%d: %+v with %v, alone it gives %v", a.ID, a, l.output, want)
	}
}

// writes says whether something could still touch the sequence's blocks.
func (w *world) touched(l *life) string {
	if w.inFlight != nil && slices.ContainsFunc(w.inFlight.Parts, func(p scheduler.Part) bool { return p.ID == l.request.ID }) {
		return "the step in flight"
	}
	if l.table != nil && !l.arrived && !l.drained && l.request.Kind != scheduler.Full {
		return "a transfer"
	}
	return ""
}

func (w *world) released(a scheduler.Released) {
	l := w.life(a.ID)
	if l.finished == nil || l.released {
		w.t.Fatalf("%d: released twice, or before its end", a.ID)
	}
	if by := w.touched(l); by != "" {
		w.t.Fatalf("%d: released while %s could touch its blocks", a.ID, by)
	}
	l.released = true
}

func (w *world) changed(a scheduler.BlocksChanged) {
	for _, hash := range a.Removed {
		if !w.cache[hash] {
			w.t.Fatalf("removed %x, which was not stored", hash)
		}
		delete(w.cache, hash)
	}
	for _, hash := range a.Stored {
		if w.cache[hash] {
			w.t.Fatalf("stored %x twice", hash)
		}
		w.cache[hash] = true
	}
}

func (w *world) runStep(a scheduler.RunStep) {
	if w.inFlight != nil {
		w.t.Fatalf("a second step in flight")
	}
	w.inFlight = &a
	w.steps++
	w.checkStep(a)
	w.recent = append(w.recent, copied(a))
	w.recent = w.recent[max(0, len(w.recent)-2):]
}

func (w *world) checkStep(a scheduler.RunStep) {
	total, prompt := 0, 0
	in := map[scheduler.SequenceID]bool{}
	for i, work := range a.Batch.Sequences {
		part := a.Parts[i]
		l := w.life(part.ID)
		if in[part.ID] || !l.live() || !l.started {
			w.t.Fatalf("%d: twice in a step, or not running", part.ID)
		}
		in[part.ID] = true
		total += len(work.Tokens)
		if part.Prompt {
			prompt += len(work.Tokens)
		} else if prompt > 0 {
			w.t.Fatalf("%d: decodes behind prompts", part.ID)
		}
		w.checkWork(l, part, work)
	}
	if len(a.Parts) == 0 || len(a.Parts) > w.config.MaxSequences || total > w.config.MaxBatchTokens || prompt > w.config.ChunkTokens {
		w.t.Fatalf("step of %d sequences with %d tokens, %d of them prompt", len(a.Parts), total, prompt)
	}
	for _, l := range w.order {
		if !l.live() || !l.started || in[l.request.ID] {
			continue
		}
		if l.computed >= len(l.request.Tokens) {
			w.t.Fatalf("%d: decodes and was left out", l.request.ID)
		}
		l.skipped++
		if l.skipped > 16+w.config.MaxSequences {
			w.t.Fatalf("%d: its prompt got nothing for %d steps", l.request.ID, l.skipped)
		}
	}
}

func (w *world) checkWork(l *life, part scheduler.Part, work engine.Sequence) {
	size, prompt := w.config.BlockTokens, len(l.request.Tokens)
	all := l.tokens()
	end := work.Start + len(work.Tokens)
	if work.Start != l.computed || len(work.Tokens) == 0 || end > len(all) || !slices.Equal(work.Tokens, all[work.Start:end]) {
		w.t.Fatalf("%d: computes %v from %d on; has %v, %d of them computed", part.ID, work.Tokens, work.Start, all, l.computed)
	}
	if !slices.Equal(work.Blocks, l.table) || len(l.table)*size < end {
		w.t.Fatalf("%d: another block table, or one too short", part.ID)
	}
	if part.Prompt != (work.Start < prompt) || (!part.Prompt && len(work.Tokens) != 1) {
		w.t.Fatalf("%d: %+v for tokens %d to %d of a prompt of %d", part.ID, part, work.Start, end, prompt)
	}
	if part.Prompt {
		if l.skipped = 0; work.Start%size != 0 || (end%size != 0 && end != prompt) || end > prompt {
			w.t.Fatalf("%d: a chunk from %d to %d", part.ID, work.Start, end)
		}
		if part.FirstBlock != work.Start/size || part.Blocks != (end+size-1)/size-work.Start/size {
			w.t.Fatalf("%d: %+v for tokens %d to %d", part.ID, part, work.Start, end)
		}
	}
	if (work.Sample != nil) != (end == len(all)) {
		w.t.Fatalf("%d: draws after %d of %d tokens: %v", part.ID, end, len(all), work.Sample != nil)
	}
	if work.Sample != nil && (int(work.Sample.Offset) != l.request.Generated+len(l.output) || work.Sample.Params != l.request.Sampling) {
		w.t.Fatalf("%d: draws with %+v after %v", part.ID, work.Sample, l.output)
	}
}

// checkBlocks counts every block and looks for two owners.
func (w *world) checkBlocks() {
	w.t.Helper()
	type use struct {
		l *life
		i int
	}
	owners := map[kvcache.BlockID]use{}
	reserved, quarantined := 0, 0
	size := w.config.BlockTokens
	for _, l := range w.order {
		if l.released {
			continue
		}
		if l.reserved && !l.arrived && !l.drained {
			private := len(l.table) - l.cached/size
			if l.finished == nil {
				reserved += private
			} else {
				quarantined += private
			}
		}
		for i, id := range l.table {
			first, shared := owners[id]
			if !shared {
				owners[id] = use{l, i}
				continue
			}
			n := (i + 1) * size
			a, b := l.tokens(), first.l.tokens()
			if first.i != i || len(a) < n || len(b) < n || !slices.Equal(a[:n], b[:n]) || l.request.Salt != first.l.request.Salt {
				w.t.Fatalf("block %d is block %d of %d and block %d of %d", id, i, l.request.ID, first.i, first.l.request.ID)
			}
		}
	}
	s := w.scheduler.PoolStats()
	if s.Free+s.Cached+s.Held+s.Quarantined != s.Total || s.Held+s.Quarantined != len(owners) ||
		s.Reserved != reserved || s.Quarantined != quarantined || s.Misuses != 0 {
		w.t.Fatalf("%+v; the driver knows %d held, %d reserved, %d quarantined", s, len(owners), reserved, quarantined)
	}
	hashes := w.scheduler.Snapshot()
	if len(hashes) != len(w.cache) {
		w.t.Fatalf("%d hashes in the cache, %d by its changes", len(hashes), len(w.cache))
	}
	for _, hash := range hashes {
		if !w.cache[hash] {
			w.t.Fatalf("%x is in the cache and was never announced", hash)
		}
	}
	if w.inFlight == nil && len(w.recent) > 1 {
		w.recent = w.recent[1:]
	}
	for _, c := range w.recent {
		if !reflect.DeepEqual(c.parts, c.step.Parts) || !reflect.DeepEqual(c.work, c.step.Batch.Sequences) {
			w.t.Fatalf("a step changed after it was handed out")
		}
	}
	w.checkLoad()
}

func (w *world) checkLoad() {
	w.t.Helper()
	s := w.scheduler.PoolStats()
	want := scheduler.Load{
		BlocksFree:        s.Free + s.Cached,
		BlocksReserved:    s.Reserved,
		BlocksQuarantined: s.Quarantined,
		BlocksTotal:       s.Total,
		StepInFlight:      w.inFlight != nil,
	}
	for _, l := range w.order {
		switch n := len(l.request.Tokens); {
		case !l.live():
		case l.table == nil:
			want.WaitingSequences++
			if l.request.Kind != scheduler.Receive {
				want.WaitingTokens += n
			}
		case l.request.Kind == scheduler.Receive && !l.arrived:
			want.ReservedSequences++
		default:
			want.RunningSequences++
			want.RunningContextTokens += n + len(l.output)
			want.RunningPromptTokens += max(0, n-l.computed)
		}
	}
	if got := w.scheduler.Load(); got != want {
		w.t.Fatalf("load %+v, want %+v", got, want)
	}
}

// settle lets everything that was begun end, and checks that nothing is left.
func (w *world) settle() {
	w.t.Helper()
	for range 10_000 {
		if w.inFlight != nil {
			w.finishStep(time.Millisecond)
			continue
		}
		if !w.settleTransfer() {
			break
		}
	}
	s := w.scheduler.PoolStats()
	if !w.scheduler.Idle() || s.Held != 0 || s.Quarantined != 0 || s.Reserved != 0 {
		w.t.Fatalf("left behind: %+v, idle %v", s, w.scheduler.Idle())
	}
	for _, l := range w.order {
		if l.refused == (l.finished != nil) || l.released != !l.refused {
			w.t.Fatalf("%d: refused %v, finished %v, released %v", l.request.ID, l.refused, l.finished, l.released)
		}
	}
}

// settleTransfer ends one transfer that has not ended.
func (w *world) settleTransfer() bool {
	for _, l := range w.order {
		switch {
		case l.refused || l.drained:
		case l.request.Kind == scheduler.PrefillOnly && l.finished != nil:
			w.transferDone(l)
			return true
		case l.request.Kind == scheduler.Receive && l.reserved && !l.arrived:
			if l.finished == nil {
				w.arrive(l, 1)
			} else {
				w.transferDone(l)
			}
			return true
		}
	}
	return false
}
