package scheduler_test

import (
	"math/bits"
	"reflect"
	"slices"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// checkStarts looks for a sequence that started and is not in the next step, and
// for something said after RunStep.
func (w *world) checkStarts() {
	w.t.Helper()
	for i, action := range w.actions {
		switch a := action.(type) {
		case scheduler.Started:
			if w.inFlight == nil || !slices.ContainsFunc(w.inFlight.Parts, func(p scheduler.Part) bool { return p.ID == a.ID }) {
				w.t.Fatalf("%d: started, but not in the next step", a.ID)
			}
		case scheduler.Resumed:
			if w.inFlight == nil || !slices.ContainsFunc(w.inFlight.Parts, func(p scheduler.Part) bool { return p.ID == a.ID }) {
				w.t.Fatalf("%d: resumed, but not in the next step", a.ID)
			}
		case *scheduler.RunStep:
			if i != len(w.actions)-1 {
				w.t.Fatalf("%T after RunStep", w.actions[i+1])
			}
		}
	}
}

// checkIdle looks for work that could be done while the engine rests.
func (w *world) checkIdle() {
	w.t.Helper()
	if w.inFlight != nil {
		return
	}
	s := w.scheduler.PoolStats()
	// What is read for saves may be held by others, too, such as what was restored.
	onlySaves := s.Held+s.Quarantined == w.saves.held() && !slices.ContainsFunc(w.order, func(l *life) bool { return len(l.table) > 0 && !l.released })
	for _, l := range w.order {
		running := l.table != nil && (l.started || l.arrived) && !(w.full(l) && s.Free+s.Cached == 0)
		if l.live() && (running || s.Held+s.Quarantined == 0) {
			w.t.Fatalf("%d: nothing runs, and it could", l.request.ID)
		}
		if l.live() && l.table == nil && onlySaves && !w.saves.allStopped() {
			w.t.Fatalf("%d: waits for a save that nobody stops", l.request.ID)
		}
	}
}

// full says whether a sequence has filled its blocks.
func (w *world) full(l *life) bool { return l.computed >= len(l.table)*w.config.BlockTokens }

// taken checks what a sequence got its blocks with, and whom it overtook.
func (w *world) taken(l *life) {
	if l.cached%w.config.BlockTokens != 0 {
		w.t.Fatalf("%d: %d cached tokens are not whole blocks", l.request.ID, l.cached)
	}
	kv, _ := alone(l.prompt[:l.cached], 0, 0, 0, nil)
	if got := w.pages.read(l.table, l.cached); !sameUnlessSpoilt(got, kv) {
		w.t.Fatalf("%d: the cached blocks hold the KV of other tokens", l.request.ID)
	}
	w.checkNotSpoilt(l.request.ID, l.table)
	w.clean(l.table[l.cached/w.config.BlockTokens:])
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

// joined checks whom a sequence overtook whose KV had arrived, too.
func (w *world) joined(l *life) {
	for _, other := range w.order {
		if other == l {
			break
		}
		if other.live() && other.arrived && !other.started && !other.preempted && other.request.Kind == scheduler.Receive {
			other.passed++
			if limit := w.config.MaxOvertakes; limit > 0 && other.passed > limit {
				w.t.Fatalf("%d, whose KV is here, was overtaken %d times, allowed are %d", other.request.ID, other.passed, limit)
			}
		}
	}
}

// clean notes that nobody has computed anything yet of what is in blocks.
func (w *world) clean(blocks []kvcache.BlockID) {
	for _, id := range blocks {
		delete(w.origins, id)
	}
}

// writes says whether something could still touch the sequence's blocks.
func (w *world) touched(l *life) string {
	if w.inFlight != nil && slices.ContainsFunc(w.inFlight.Parts, func(p scheduler.Part) bool { return p.ID == l.request.ID }) {
		return "the step in flight"
	}
	if l.request.Kind == scheduler.Restore && l.finished.Reason == scheduler.Restored && !l.drained {
		return "who needs what was restored"
	}
	if l.table != nil && !l.arrived && !l.drained && l.request.Kind != scheduler.Full {
		return "a transfer"
	}
	return ""
}

func (w *world) checkStep(a *scheduler.RunStep) {
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
			if prompt += len(work.Tokens); len(work.Tokens) > w.config.ChunkTokens {
				w.t.Fatalf("%d: %d tokens of its prompt in a step", part.ID, len(work.Tokens))
			}
		} else if prompt > 0 {
			w.t.Fatalf("%d: decodes behind prompts", part.ID)
		}
		w.checkWork(l, part, work)
	}
	if len(a.Parts) == 0 || len(a.Parts) > w.config.MaxSequences || total > w.config.MaxBatchTokens {
		w.t.Fatalf("step of %d sequences with %d tokens, %d of them prompt", len(a.Parts), total, prompt)
	}
	for _, l := range w.order {
		if !l.live() || !l.started || in[l.request.ID] || l.table == nil {
			continue
		}
		if l.computed >= len(l.prompt) {
			if s := w.scheduler.PoolStats(); w.full(l) && s.Free+s.Cached == 0 {
				continue // nobody can be preempted for it
			}
			w.t.Fatalf("%d: decodes and was left out", l.request.ID)
		}
		l.skipped++
		if l.skipped > 16+w.config.MaxSequences {
			w.t.Fatalf("%d: its prompt got nothing for %d steps", l.request.ID, l.skipped)
		}
	}
}

func (w *world) checkWork(l *life, part scheduler.Part, work engine.Sequence) {
	size, prompt := w.config.BlockTokens, len(l.prompt)
	drafts := w.checkDrafts(l, part, &work)
	more := 0 // blocks that it may have got: one for its next token, and one for drafts
	if w.full(l) && !part.Prompt {
		more++
	}
	if drafts > 0 {
		more++
	}
	if n := len(work.Blocks) - len(l.table); n > 0 && n <= more && slices.Equal(work.Blocks[:len(l.table)], l.table) {
		w.clean(work.Blocks[len(l.table):])
		l.table = work.Blocks
	}
	if len(l.table)*size < work.Start+len(work.Tokens)+drafts {
		w.t.Fatalf("%d: no blocks for %d drafts: %v in %v, had %v", part.ID, drafts, work, work.Blocks, l.table)
	}
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
	want := l.draw()
	if !w.config.EngineDrafts {
		want.MostForced = w.config.MaxDrafts
	}
	if work.Sample != nil && !reflect.DeepEqual(*work.Sample, want) {
		w.t.Fatalf("%d: draws with %+v, not %+v", part.ID, *work.Sample, want)
	}
}

// checkDrafts takes the drafts out of a sequence's work, and says how many there were.
func (w *world) checkDrafts(l *life, part scheduler.Part, work *engine.Sequence) int {
	if work.Sample == nil || work.Sample.Drafts == 0 && work.Sample.DraftRequest.Most == 0 {
		return 0
	}
	n := work.Sample.Drafts
	if w.config.EngineDrafts {
		if n > 0 || work.Sample.DraftRequest.Sequence != uint64(part.ID) {
			w.t.Fatalf("%d: %d drafts where the engine makes them, for %+v", part.ID, n, work.Sample.DraftRequest)
		}
		n = work.Sample.DraftRequest.Most
	} else if work.Sample.DraftRequest.Most > 0 {
		w.t.Fatalf("%d: the engine is asked for drafts", part.ID)
	}
	r := l.request
	left := min(r.MaxTokens-r.Generated-len(l.output), w.config.ContextTokens-len(l.tokens()))
	if n > w.config.MaxDrafts || part.Prompt || r.Kind == scheduler.PrefillOnly || n >= left || w.config.EngineDrafts && work.Sample.DraftRequest.Left != left {
		w.t.Fatalf("%d: %d drafts where %d tokens are left: %+v", part.ID, n, left, part)
	}
	sample := *work.Sample
	work.Tokens = work.Tokens[:len(work.Tokens)-sample.Drafts]
	sample.Drafts, sample.DraftRequest, work.Sample = 0, engine.DraftRequest{}, &sample
	return n
}

// draw is how the next token has to be drawn.
func (l *life) draw() engine.Sample {
	r, all := l.request, l.tokens()
	asked := len(r.Tokens) - r.Generated
	return engine.Sample{
		Params: r.Sampling, Constraint: r.Constraint, Offset: uint64(len(all) - asked), Logprobs: r.Logprobs, TopLogprobs: r.TopLogprobs,
		History: sampler.History{Prompt: all[:asked], Generated: all[asked:]},
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
	reserved, quarantined := 0, len(w.scrubbing)
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
	for _, id := range w.saves.blocks() {
		owners[id] = use{}
	}
	s := w.scheduler.PoolStats()
	if s.Free+s.Cached+s.Held+s.Quarantined != s.Total || s.Held+s.Quarantined != len(owners)+len(w.scrubbing) ||
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
	}
	for _, l := range w.order {
		decodes := 0
		if l.request.Kind == scheduler.Full || l.request.Kind == scheduler.Receive {
			decodes = 1
		}
		switch n := len(l.prompt); {
		case !l.live():
		case l.table == nil:
			want.WaitingSequences++
			want.DecodingSequences += decodes
			if l.request.Kind != scheduler.Receive || l.preempted {
				want.WaitingTokens += n
			}
		case l.receiving():
			want.DecodingSequences += decodes
			want.DecodingContextTokens += decodes * len(l.tokens())
		default:
			want.RunningSequences++
			want.RunningContextTokens += len(l.tokens())
			want.DecodingSequences += decodes
			want.DecodingContextTokens += decodes * len(l.tokens())
			left := max(0, n-l.computed)
			want.RunningPromptTokens += left
			want.PromptTokens[bits.Len(uint(left))] += left
		}
	}
	got := w.scheduler.Load()
	// What was cached when a wait began does not count. By length, the rest are waiting ones.
	if got.WaitingTokens > want.WaitingTokens {
		w.t.Fatalf("%d tokens wait, at most %d can", got.WaitingTokens, want.WaitingTokens)
	}
	left := got.WaitingTokens
	for length := range want.PromptTokens {
		left -= got.PromptTokens[length] - want.PromptTokens[length]
		if got.PromptTokens[length] < want.PromptTokens[length] {
			w.t.Fatalf("of length %d: %d tokens, and %d run", length, got.PromptTokens[length], want.PromptTokens[length])
		}
	}
	if left != 0 {
		w.t.Fatalf("%d of the tokens that wait have no length", left)
	}
	want.WaitingTokens, want.PromptTokens = got.WaitingTokens, got.PromptTokens
	if want.CrowdedStepPromptTokens = got.CrowdedStepPromptTokens; got.CrowdedStepPromptTokens < 0 || got.CrowdedStepPromptTokens > w.config.ChunkTokens {
		w.t.Fatalf("a step takes %d tokens of a prompt beside others, and may take %d", got.CrowdedStepPromptTokens, w.config.ChunkTokens)
	}
	if want.StepPromptTokens = got.StepPromptTokens; got.StepPromptTokens < 0 || got.StepPromptTokens > w.config.ChunkTokens {
		w.t.Fatalf("a step takes %d tokens of a prompt, and may take %d", got.StepPromptTokens, w.config.ChunkTokens)
	}
	most := 0 // that all who have blocks could still need
	for _, l := range w.order {
		if l.live() && l.table != nil && (l.request.Kind == scheduler.Full || l.request.Kind == scheduler.Receive) {
			total := min(l.request.MaxTokens-l.request.Generated+len(l.request.Tokens), w.config.ContextTokens) - 1
			most += max((total+w.config.BlockTokens-1)/w.config.BlockTokens-len(l.table), 0)
		}
	}
	if want.BlocksExpected = got.BlocksExpected; got.BlocksExpected > min(most, got.BlocksFree) {
		w.t.Fatalf("%d blocks are expected to be needed, at most %d can be, and %d are free", got.BlocksExpected, most, got.BlocksFree)
	}
	if got != want {
		w.t.Fatalf("load %+v, want %+v", got, want)
	}
}
