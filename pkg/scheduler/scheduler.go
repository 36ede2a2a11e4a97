package scheduler

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// Scheduler is the state machine of one worker. It is not safe for concurrent
// use.
type Scheduler struct {
	config Config
	pool   *kvcache.Pool
	slots  int // most sequences that run at a time

	sequences map[SequenceID]*sequence
	waiting   []*sequence // for blocks, or for a place; in the order of before
	arrived   []*sequence // Receive with KV, waiting for a place
	receiving []*sequence // Receive and Restore, having blocks that a transfer writes
	running   []*sequence // in the batch: prompts and decodes, as they came
	ticket    uint64      // last arrival number
	freed     uint64      // grows when a sequence that did not fit might fit now
	draining  bool
	now       time.Time // of the last event

	steps          [2]step // by turns, so that one is untouched while the next is built
	turn           int
	inFlight       *step
	prompts        []*sequence // scratch of plan
	growing        []*sequence // scratch of grow
	block          []int32     // scratch of publish: one block of tokens
	forecast       forecast
	growthOfAll    int // blocks that those who have some are expected to need besides; kept while sequences are admitted
	stepCost       stepCost
	promptBudget   promptBudget // scratch of addPrompts
	withoutPrompts int          // steps in a row that had no prompt so that tokens are in time
	drafting       drafting

	saves     []*save
	saveLimit int
	lastSave  SaveID
	pinned    []kvcache.BlockID // scratch of stopSavesFor

	actions []Action
	drawn   []Sampled     // those of actions
	changed BlocksChanged // that of actions
}

// New makes a scheduler that waits for its first event.
func New(config Config) (*Scheduler, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.MaxOvertakes = cmp.Or(config.MaxOvertakes, defaultMaxOvertakes)
	config.OutputShare = cmp.Or(config.OutputShare, 1)
	return &Scheduler{
		config:    config,
		forecast:  forecast(config.OutputShare),
		pool:      config.Pool,
		slots:     Places(config.MaxSequences, config.MaxBatchTokens, config.BlockTokens),
		sequences: make(map[SequenceID]*sequence),
		block:     make([]int32, 0, config.BlockTokens),
	}, nil
}

// Handle takes an event that happened at now and answers with what is to be
// done, in this order. now never goes back. The slice is used again by the next
// call, and so is what a *Sampled and a *BlocksChanged point to, hashes included.
// Block tables are never changed and may be kept. A *RunStep, its batch and its parts
// stay as they are until the StepDone of the step after it, but for Batch.TokenBuffer, which
// is the engine's and then whose Tokens it becomes.
func (s *Scheduler) Handle(now time.Time, event Event) []Action {
	s.now, s.actions = now, s.actions[:0]
	s.drawn = s.drawn[:0]
	switch e := event.(type) {
	case Submit:
		s.submit(now, e.Request)
	case KVArrived:
		s.kvArrived(now, e)
	case TransferDone:
		s.transferDone(e.ID)
	case Cancel:
		if q, ok := s.sequences[e.ID]; ok && q.phase != over {
			s.finish(q, Cancelled, nil)
		}
	case StepDone:
		s.stepDone(e)
	case Drain:
		s.draining = true
	case Undrain:
		s.draining = false
	case SaveLimit:
		if s.saveLimit = e.Saves; e.Anew {
			s.pool.ForgetSaved()
		}
	case SaveDone:
		s.saveDone(e)
	case Scrubbed:
		s.pool.Drained(e.Blocks)
		s.freed++
	}
	s.reserve()
	planned := s.inFlight == nil && s.plan(now)
	s.save()
	if blocks := s.pool.Invalidated(); len(blocks) > 0 {
		s.act(Scrub{Blocks: blocks})
	}
	if stored, removed := s.pool.Changes(); len(stored)+len(removed) > 0 {
		s.changed = BlocksChanged{Stored: stored, Removed: removed}
		s.act(&s.changed)
	}
	if planned {
		s.act(&s.inFlight.run)
	}
	return s.actions
}

func (s *Scheduler) act(a Action) { s.actions = append(s.actions, a) }

// Snapshot is the hash of every block in the prefix cache: what all
// BlocksChanged so far add up to.
func (s *Scheduler) Snapshot() []kvcache.Hash { return s.pool.Hashes() }

// PoolStats counts the pool's blocks and look-ups.
func (s *Scheduler) PoolStats() kvcache.Stats { return s.pool.Stats() }

func (s *Scheduler) submit(now time.Time, r Request) {
	refuse := func(reason RefuseReason) { s.act(Refused{ID: r.ID, Reason: reason}) }
	_, known := s.sequences[r.ID]
	switch {
	case known || !r.valid(s.config.BlockTokens):
		refuse(Invalid)
		return
	case s.draining && !r.Accepted:
		refuse(Draining)
		return
	case len(r.Tokens) >= s.config.ContextTokens:
		refuse(NeverFits)
		return
	}
	s.ticket++
	q := newSequence(r, s.config, s.ticket, now)
	if q.blocksNeeded > s.pool.Total() {
		refuse(NeverFits)
		return
	}
	if r.Kind == Restore {
		if !s.restore(q) {
			refuse(NoBlocks)
		}
		return
	}
	if places := s.slots - len(s.running) - len(s.arrived) - len(s.receiving); len(s.waiting) >= s.config.MaxWaiting+max(places, 0) {
		refuse(QueueFull)
		return
	}
	q.hashes = s.findable(q)
	s.sequences[r.ID] = q
	s.enqueue(q)
}

// hashesOf is of the blocks that a request may find in the prefix cache.
func (s *Scheduler) hashesOf(r *Request) []kvcache.Hash {
	if r.Pooling != nil {
		return nil
	}
	hashes := r.Hashes
	if hashes == nil {
		hashes = s.pool.BlockHashes(r.Salt, r.Tokens)
	}
	if r.Kind == Receive || r.Kind == Restore {
		return hashes
	}
	// The last token is computed in any case: there are no logits without.
	return hashes[:min(len(hashes), (len(r.Tokens)-1)/s.config.BlockTokens)]
}

func (s *Scheduler) kvArrived(now time.Time, e KVArrived) {
	q, ok := s.sequences[e.ID]
	if !ok || q.request.Kind != Receive && q.request.Kind != Restore || q.table == nil || q.kvArrived {
		return
	}
	q.kvArrived, q.inTransfer, q.unshared = true, false, e.Approximate
	s.receiving = without(s.receiving, q)
	if q.phase == over {
		s.release(q)
		return
	}
	if q.request.Kind == Restore {
		s.restored(q, e.From)
		return
	}
	s.pool.Arrived(q.ownBlocks())
	s.setOrigin(q, e.From)
	q.computed = len(q.request.Tokens)
	if len(e.Sampled) == 0 { // nor is the KV of such a sender shared
		s.finish(q, Failed, errors.New("scheduler: KV arrived without the token sampled from it; the sender must commit at least one"))
		return
	}
	s.publish(q)
	for _, token := range e.Sampled {
		q.output = append(q.output, token)
		if reason := q.ended(token); reason != 0 {
			s.finish(q, reason, nil)
			return
		}
	}
	q.since = now
	q.pace.begin(now, len(q.output))
	q.phase = ready
	q.overtaken, q.aged = 0, false // from now on it waits for a place, beside others that do
	q.setLeft(0)
	s.arrived = append(s.arrived, q)
}

// setOrigin notes who computed the KV that a transfer brought.
func (s *Scheduler) setOrigin(q *sequence, from string) {
	q.received, q.from = len(q.request.Tokens), from
	whole := q.received / s.config.BlockTokens
	s.pool.SetOrigin(q.table[min(q.cached, whole):whole], from)
}

func (s *Scheduler) transferDone(id SequenceID) {
	q, ok := s.sequences[id]
	if !ok || !q.inTransfer {
		return
	}
	q.inTransfer = false
	if q.phase == receiving {
		s.finish(q, Failed, errors.New("scheduler: the transfer ended without the KV; run the request again"))
		return
	}
	s.release(q)
}

// finish ends a sequence for a reason.
func (s *Scheduler) finish(q *sequence, reason FinishReason, err error) {
	s.end(q, Finished{Reason: reason, Err: err})
}

// end ends a sequence. What it holds goes back at once if nothing is using it, else when
// that ends.
func (s *Scheduler) end(q *sequence, how Finished) {
	switch q.phase {
	case waiting:
		s.waiting = without(s.waiting, q)
	case ready:
		s.arrived = without(s.arrived, q)
	case prefilling, decoding:
		s.running = without(s.running, q)
	case receiving:
		s.receiving = without(s.receiving, q)
		if q.inTransfer {
			s.pool.Quarantine(q.ownBlocks())
			q.quarantined = true
			s.freed++ // not yet what it has, but what it was expected to grow by
		}
	}
	if q.table == nil {
		q.inTransfer = false // nothing to read or to write
	}
	q.phase = over
	if generated := q.length() - (q.totalTokens - q.mayGenerate); q.grows() && q.mayGenerate > 1 && generated > 0 && how.Reason != Failed {
		// Also if it was cancelled: whoever waits for words and not for a token ends
		// it so. One that may generate one token generates all that it may.
		s.forecast.observe(generated, q.mayGenerate)
	}
	how.ID, how.PrefillCompute, how.DecodeCompute = q.request.ID, q.prefillCompute, q.decodeCompute
	if q.drafts != nil {
		how.Drafts, how.AcceptedDrafts = q.drafts.verified, q.drafts.accepted
	}
	s.act(how)
	s.release(q)
}

// release gives the blocks of a sequence back, once it is over and neither a
// step nor a transfer uses them.
func (s *Scheduler) release(q *sequence) {
	if q.phase != over || q.inStep || q.inTransfer {
		return
	}
	if q.quarantined {
		s.pool.Drained(q.ownBlocks())
		s.pool.Release(q.table[:q.cached])
	} else {
		s.pool.Release(q.table)
	}
	s.freed++
	delete(s.sequences, q.request.ID)
	s.act(Released{ID: q.request.ID})
}

// publish makes the full blocks that were computed since the last call
// shareable.
func (s *Scheduler) publish(q *sequence) {
	size := s.config.BlockTokens
	if q.unshared || (q.published+1)*size > q.computed { // most often
		return
	}
	if end := min(q.computed/size, len(q.hashes)); end > q.published+1 {
		s.pool.Fetch(q.hashes[q.published:end])
	}
	for ; (q.published+1)*size <= q.computed; q.published++ {
		s.block = q.appendTokens(s.block[:0], q.published*size, size)
		if block := q.table[q.published]; q.published < len(q.hashes) {
			q.chain = s.pool.PublishHashed(q.chain, block, s.block, q.hashes[q.published])
		} else {
			q.hashes = nil
			q.chain = s.pool.Publish(q.chain, block, s.block)
		}
		s.freed++
	}
}

func without(list []*sequence, q *sequence) []*sequence {
	if i := slices.Index(list, q); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}
