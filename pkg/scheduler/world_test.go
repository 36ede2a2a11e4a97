package scheduler_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/sampler"
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
	saves    saves

	origins   map[kvcache.BlockID]string // who computed whole blocks, if that was not this worker
	spoilt    map[kvcache.BlockID]bool   // found not to be finite, and not overwritten since
	scrubbing []kvcache.BlockID          // that the scheduler wants overwritten

	preemptions, drafts, accepted int
	drafting                      time.Duration // what a draft of the engine takes
	eager                         bool          // it makes as many as it may
	putsOff                       bool          // the engine puts draws off now and then, for constraints
	// forces says what constraints force after so many tokens of an output; nil: nothing.
	forces  func(output []int32, at int) engine.ForcedTokens
	actions []scheduler.Action // of the last event
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
	scored   int     // tokens of the prompt that PromptScored said
	skipped  int     // steps in a row without a chunk of its prompt

	prompt    []int32 // what is computed in chunks: of one that was preempted, all that it had
	preempted bool    // at least once

	finished *scheduler.Finished
	released bool

	overtaken int // while it waited for blocks
	passed    int // while it waited for a place, with its KV
}

// written is a step and what it was when it was handed out.
type written struct {
	step  *scheduler.RunStep
	parts []scheduler.Part
	work  []engine.Sequence
}

func copied(step *scheduler.RunStep) written {
	c := written{step: step, parts: slices.Clone(step.Parts), work: slices.Clone(step.Batch.Sequences)}
	for i := range c.work {
		c.work[i].Tokens = slices.Clone(c.work[i].Tokens)
		c.work[i].Blocks = slices.Clone(c.work[i].Blocks)
		if c.work[i].Sample != nil {
			sample := *c.work[i].Sample
			sample.History.Prompt = append([]int32{}, sample.History.Prompt...)
			sample.History.Generated = append([]int32{}, sample.History.Generated...)
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
		saves:     saves{open: map[scheduler.SaveID]*pinned{}},
		origins:   map[kvcache.BlockID]string{},
		spoilt:    map[kvcache.BlockID]bool{},
	}
}

// twoOfSix forces the next two of every three tokens. If the text ends with them, the last one is not what comes.
func twoOfSix(output []int32, at int) (f engine.ForcedTokens) {
	if at%3 == 0 && at+2 <= len(output) {
		f.Tokens, f.Open = slices.Clone(output[at:at+2]), at%2 == 0
		if f.Open {
			f.Tokens[1] = (f.Tokens[1] + 1) % vocabulary
		}
	}
	return f
}

// expected is what the sequence has to give in all, computed alone.
func (w *world) expected(l *life) []int32 {
	r := l.request
	if r.Kind == scheduler.Restore {
		return nil
	}
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

// receiving says whether it has blocks and waits for its KV.
func (l *life) receiving() bool {
	return l.live() && l.table != nil && !l.arrived && (l.request.Kind == scheduler.Receive || l.request.Kind == scheduler.Restore)
}

func (w *world) submit(r scheduler.Request) *life {
	l := &life{request: r, prompt: r.Tokens}
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
	for _, id := range l.table[l.cached/w.config.BlockTokens : len(kv)/w.config.BlockTokens] {
		w.origins[id] = sender
	}
	w.handle(scheduler.KVArrived{ID: l.request.ID, Sampled: sampled, From: sender})
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
		made := w.pages.draft(work, uint64(w.steps), w.eager)
		if n := len(made); n > 0 {
			done.Drafting += time.Duration(n) * w.drafting
			sample := *work.Sample
			sample.Drafts = n
			work.Sample, work.Tokens = &sample, slices.Concat(work.Tokens, made)
		}
		if w.config.EngineDrafts {
			done.Drafts = append(done.Drafts, made)
		}
		token, accepted := w.pages.run(work)
		later := w.later(i, token)
		if later {
			token, accepted = sampler.Later, int32(w.steps)%(accepted+1)
		}
		if work.Pooling != nil { // the hidden state of a token is the token
			for _, token := range work.Tokens {
				work.Pooling.Add([]float64{float64(token)})
			}
		}
		done.Tokens, done.Accepted = append(done.Tokens, token), append(done.Accepted, accepted)
		done.Forced = append(done.Forced, engine.ForcedTokens{})
		if l := w.lives[step.Parts[i].ID]; w.forces != nil && work.Sample != nil && work.Sample.MostForced > 0 && token >= 0 {
			done.Forced[i] = w.forces(w.expected(l), len(l.output)+int(accepted)+1)
		}
		done.Logprobs = append(done.Logprobs, sampler.Logprobs{Drawn: float32(-i)})
		done.DraftLogprobs = append(done.DraftLogprobs, make([]sampler.Logprobs, accepted))
		done.PromptLogprobs = append(done.PromptLogprobs, nil)
		if work.Prompt != nil {
			kv := w.pages.read(work.Blocks, work.Start+len(work.Tokens))
			for j, next := range work.Prompt.Next {
				done.PromptLogprobs[i] = append(done.PromptLogprobs[i], score(kv[:work.Start+j+1], next))
			}
		}
		drafts := 0
		if work.Sample != nil {
			drafts = work.Sample.Drafts
		}
		if l := w.lives[step.Parts[i].ID]; l.finished == nil {
			switch l.computed = work.Start + len(work.Tokens) - drafts + int(accepted); {
			case later && step.Parts[i].Prompt:
				l.computed = work.Start
			case later:
				l.computed--
			}
		}
		w.drafts, w.accepted = w.drafts+drafts, w.accepted+int(accepted)
	}
	w.inFlight = nil
	w.handle(done)
}

// later says whether the draw of the i-th sequence of the step is put off. The first one of a request
// never is.
func (w *world) later(i int, token int32) bool {
	part := w.inFlight.Parts[i]
	return w.putsOff && token >= 0 && (!part.Prompt || w.lives[part.ID].preempted) && digest(uint64(w.steps), uint64(i))%3 == 0
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
		case scheduler.Preempted:
			w.preempted(a)
		case scheduler.Resumed:
			w.resumed(a)
		case *scheduler.Sampled:
			w.sampled(a)
		case scheduler.PromptScored:
			w.scored(a)
		case scheduler.Finished:
			w.finished(a)
		case scheduler.Released:
			w.released(a)
		case *scheduler.BlocksChanged:
			w.changed(a)
		case scheduler.Save:
			w.saveBegins(a)
		case scheduler.StopSave:
			w.saveStops(a)
		case scheduler.Scrub:
			w.scrub(a)
		case *scheduler.RunStep:
			w.runStep(a)
		}
	}
	w.checkStarts()
	w.checkIdle()
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
	if l.reserved || !l.live() || l.request.Kind != scheduler.Receive && l.request.Kind != scheduler.Restore {
		w.t.Fatalf("%d: reserved twice, or at the wrong time", a.ID)
	}
	l.reserved, l.table, l.cached = true, a.Blocks, a.CachedTokens
	w.taken(l)
}

func (w *world) started(a scheduler.Started) {
	l := w.life(a.ID)
	if l.started || !l.live() || (l.request.Kind == scheduler.Receive) != l.arrived || l.request.Kind == scheduler.Restore {
		w.t.Fatalf("%d: started twice, or at the wrong time", a.ID)
	}
	l.started = true
	if l.preempted {
		w.begins(l, a.Blocks, a.CachedTokens)
		return
	}
	if l.request.Kind == scheduler.Receive {
		if !slices.Equal(l.table, a.Blocks) || l.cached != a.CachedTokens {
			w.t.Fatalf("%d: started with other blocks than it reserved", a.ID)
		}
		w.joined(l)
		return
	}
	w.begins(l, a.Blocks, a.CachedTokens)
}

// begins gives a sequence that computes its own prompt its blocks.
func (w *world) begins(l *life, blocks []kvcache.BlockID, cached int) {
	if l.table != nil || cached >= len(l.prompt) {
		w.t.Fatalf("%d: it has blocks, or nothing left to compute", l.request.ID)
	}
	l.table, l.cached, l.computed = blocks, cached, cached
	w.taken(l)
}

func (w *world) preempted(a scheduler.Preempted) {
	l := w.life(a.ID)
	if w.inFlight != nil || !l.live() || l.table == nil || !preemptible(l) || w.touched(l) != "" {
		w.t.Fatalf("%d: preempted at the wrong time", a.ID)
	}
	for _, other := range w.order {
		if other != l && other.live() && other.table != nil && preemptible(other) && w.touched(other) == "" && lessUrgent(other, l) {
			w.t.Fatalf("%d: preempted before %d", a.ID, other.request.ID)
		}
	}
	l.preempted, l.prompt, l.table, l.cached, l.computed, l.overtaken, l.skipped = true, l.tokens(), nil, 0, 0, 0, 0
	w.preemptions++
}

// preemptible says whether a sequence that has blocks may have to give them up.
func preemptible(l *life) bool {
	return l.request.Kind == scheduler.Full || l.request.Kind == scheduler.Receive && l.arrived
}

func lessUrgent(a, b *life) bool {
	if a.request.Priority != b.request.Priority {
		return a.request.Priority < b.request.Priority
	}
	return a.request.ID > b.request.ID
}

func (w *world) resumed(a scheduler.Resumed) {
	l := w.life(a.ID)
	if !l.started || !l.preempted || !l.live() {
		w.t.Fatalf("%d: resumed at the wrong time", a.ID)
	}
	w.begins(l, a.Blocks, a.CachedTokens)
}

func (w *world) sampled(a *scheduler.Sampled) {
	l := w.life(a.ID)
	want := w.expected(l)
	at := a.Offset - l.request.Generated
	if !l.live() || !l.started || at != len(l.output) || at >= len(want) || a.Token != want[at] {
		w.t.Fatalf("%d: token %d at offset %d after %v; alone it gives %v", a.ID, a.Token, a.Offset, l.output, want)
	}
	if (a.Logprobs != nil) != l.request.Logprobs {
		w.t.Fatalf("%d: log probabilities %v, asked %v", a.ID, a.Logprobs, l.request.Logprobs)
	}
	if last := l.asked() - 1; l.request.PromptLogprobs && l.scored != last {
		w.t.Fatalf("%d: a token after %d of %d of the prompt were scored", a.ID, l.scored, last)
	}
	l.output = append(l.output, a.Token)
}

// asked is how many tokens the prompt has.
func (l *life) asked() int { return len(l.request.Tokens) - l.request.Generated }

func (w *world) scored(a scheduler.PromptScored) {
	l := w.life(a.ID)
	if !l.live() || !l.request.PromptLogprobs || a.Offset != l.scored+1 || len(a.Logprobs) == 0 || l.scored+len(a.Logprobs) >= l.asked() {
		w.t.Fatalf("%d: %d tokens of the prompt scored from %d on, after %d of %d", a.ID, len(a.Logprobs), a.Offset, l.scored, l.asked()-1)
	}
	kv, _ := alone(l.request.Tokens, 0, 0, 0, nil)
	for i, got := range a.Logprobs {
		at := a.Offset + i
		if want := score(kv[:at], l.request.Tokens[at]); got.Drawn != want.Drawn {
			w.t.Fatalf("%d: token %d of the prompt has %v, want %v", a.ID, at, got.Drawn, want.Drawn)
		}
	}
	l.scored += len(a.Logprobs)
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
	stopped := complete && len(l.output) > 0 && slices.Contains(l.request.Stop, last())
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
		ok = a.Err != nil && w.failed(l, a)
	case scheduler.Restored:
		ok = l.request.Kind == scheduler.Restore && l.arrived
	}
	if !ok {
		w.t.Fatalf("%d: %+v with %v, alone it gives %v", a.ID, a, l.output, want)
	}
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

func (w *world) changed(a *scheduler.BlocksChanged) {
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

func (w *world) runStep(a *scheduler.RunStep) {
	if w.inFlight != nil {
		w.t.Fatalf("a second step in flight")
	}
	w.inFlight = a
	w.steps++
	w.checkStep(a)
	w.recent = append(w.recent, copied(a))
	w.recent = w.recent[max(0, len(w.recent)-2):]
}

// finishAll lets everything that was begun end, and checks that nothing is left.
func (w *world) finishAll() {
	w.t.Helper()
	for range 10_000 {
		if w.inFlight != nil {
			w.finishStep(time.Millisecond)
			continue
		}
		if !w.endTransfer() && !w.endSave() && !w.scrubbed(len(w.scrubbing)) {
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

// endTransfer ends one transfer that has not ended.
func (w *world) endTransfer() bool {
	for _, l := range w.order {
		switch {
		case l.refused || l.drained:
		case l.request.Kind == scheduler.PrefillOnly && l.finished != nil:
			w.transferDone(l)
			return true
		case l.request.Kind == scheduler.Restore && l.reserved:
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
