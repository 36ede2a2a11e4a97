package scheduler

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// phase is where in its life a sequence is.
type phase int8

const (
	waiting    phase = iota // for blocks, or for a place
	receiving               // has blocks; a transfer writes them
	ready                   // its KV arrived; waits for a place
	prefilling              // runs: its prompt is not complete
	decoding                // runs
	over                    // finished; something may still use its blocks
)

type sequence struct {
	// What every step reads of every sequence is first, up to Stop of request.
	phase                         phase
	inStep                        bool // the step in flight contains it
	stalled                       bool // it waits for a block that its next token needs
	unshared                      bool // its KV is approximate, or its hidden states are pooled: nothing of it is published
	inTransfer                    bool // a transfer may read or write its blocks
	kvArrived                     bool
	quarantined                   bool
	started                       bool // Started was said
	computed                      int  // tokens whose KV is in the blocks
	published                     int  // blocks that were offered to the prefix cache
	blocksNeeded                  int  // the most that it can come to need
	totalTokens                   int  // the most that prompt and completion can become
	table                         []kvcache.BlockID
	output                        []int32 // generated in all tries; the first are the end of request.Tokens
	prefillCompute, decodeCompute time.Duration
	pace                          pace
	drafts                        *drafts             // nil before it could have any
	forced                        engine.ForcedTokens // by its output constraint, after the text so far
	request                       Request
	cached                        int // blocks that came from the prefix cache
	chain                         kvcache.Chain
	samples                       [2]engine.Sample // one for each of Scheduler.steps

	scored   int    // tokens of the prompt, the first ones, after which the next was scored
	received int    // tokens, the first ones, whose KV was there when a transfer had ended
	from     string // who computed what it brought
	skipped  int    // steps in a row that had nothing of its prompt

	due    time.Time // by Request.FirstIn; zero: it has none
	ticket uint64    // order of arrival
	since  time.Time // when its wait began

	// Waiting.
	hashes         []kvcache.Hash // of the blocks that it may find in the cache, until they are published
	mayGenerate    int            // how many tokens may come after those of the request as it was submitted
	left, leftBits int            // tokens left of its prompt, and how many bits express that
	overtaken      int            // later ones that were taken before it, to what it waits for now
	aged           bool           // overtaken as often as allowed
	lookedUp       bool           // its prompt was counted as looked up in the prefix cache
	triedAt        uint64         // Scheduler.freed when it last did not fit
	blockedBySaves bool           // it would have fitted then, but for saves
}

func newSequence(r Request, c Config, ticket uint64, now time.Time) *sequence {
	q := &sequence{request: r, ticket: ticket, since: now}
	if r.FirstIn > 0 {
		q.due = now.Add(r.FirstIn)
	}
	q.output = slices.Clone(r.Tokens[len(r.Tokens)-r.Generated:])
	q.totalTokens = c.ContextTokens
	if left := r.MaxTokens - r.Generated; left < c.ContextTokens-len(r.Tokens) {
		q.totalTokens = len(r.Tokens) + left
	}
	q.mayGenerate = q.totalTokens - len(r.Tokens)
	positions := q.totalTokens - 1 // the last token's KV is never computed
	if !q.grows() {
		positions = len(r.Tokens)
	}
	q.blocksNeeded = kvcache.BlocksFor(positions, c.BlockTokens)
	q.inTransfer, q.unshared = r.Kind == PrefillOnly, r.Pooling != nil
	for i := range q.samples {
		q.samples[i] = engine.Sample{
			Params:      r.Sampling,
			History:     sampler.History{Prompt: r.Tokens[:len(r.Tokens)-r.Generated]},
			Constraint:  r.Constraint,
			Logprobs:    r.Logprobs,
			TopLogprobs: r.TopLogprobs,
		}
		if !c.EngineDrafts {
			q.samples[i].MostForced = c.MaxDrafts
		}
	}
	return q
}

// sampled is what was generated after request.Tokens.
func (q *sequence) sampled() []int32 { return q.output[q.request.Generated:] }

// length is the number of tokens so far, sampled ones included.
func (q *sequence) length() int { return len(q.request.Tokens) + len(q.sampled()) }

// offset is the number of tokens generated so far.
func (q *sequence) offset() int { return len(q.output) }

// ended is why the sequence ends with the token just appended; 0 if it does not.
func (q *sequence) ended(token int32) FinishReason {
	switch {
	case slices.Contains(q.request.Stop, token):
		return Stopped
	case q.length() >= q.totalTokens:
		return Length
	}
	return 0
}

// draw is the draw of the next token, for the step whose turn it is.
func (q *sequence) draw(turn int) *engine.Sample {
	sample := &q.samples[turn]
	sample.Offset, sample.Drafts, sample.DraftRequest = uint64(q.offset()), 0, engine.DraftRequest{}
	sample.History.Generated = q.output // what is appended later does not change what is there
	return sample
}

// ownBlocks is the part of the block table that the sequence itself fills.
func (q *sequence) ownBlocks() []kvcache.BlockID { return q.table[q.cached:] }

// appendTokens appends n tokens from position first on.
func (q *sequence) appendTokens(dst []int32, first, n int) []int32 {
	prompt := q.request.Tokens
	if first < len(prompt) {
		fromPrompt := min(n, len(prompt)-first)
		dst = append(dst, prompt[first:first+fromPrompt]...)
		first, n = first+fromPrompt, n-fromPrompt
	}
	first -= len(prompt)
	return append(dst, q.sampled()[max(first, 0):max(first, 0)+n]...)
}

// before orders sequences that compete for the same thing.
func before(a, b *sequence) int {
	return cmp.Or(
		cmp.Compare(a.class(), b.class()),
		a.byAge(b),
		cmp.Compare(b.request.Priority, a.request.Priority),
		compareDeadlines(a.due, b.due),
		cmp.Compare(a.leftBits, b.leftBits),
		compareDeadlines(a.request.Deadline, b.request.Deadline),
		cmp.Compare(a.ticket, b.ticket),
	)
}

// setLeft notes how many tokens of a prompt are left to compute. Prompts with fewer come first, by the
// next power of two; deadline and arrival decide between those that have the same.
func (q *sequence) setLeft(left int) {
	q.left = max(left, 0)
	q.leftBits = bits.Len(uint(q.left))
}

// class puts prompts that starve before all, then requests that were overtaken
// as often as allowed, then the rest.
func (q *sequence) class() int {
	switch {
	case q.phase == prefilling && q.skipped >= maxSkippedSteps:
		return 0
	case (q.phase == waiting || q.phase == ready) && q.aged:
		return 1
	}
	return 2
}

// byAge orders two of the same class by arrival alone if they had to wait too
// long.
func (q *sequence) byAge(other *sequence) int {
	if q.class() == 2 {
		return 0
	}
	return cmp.Compare(q.ticket, other.ticket)
}

// compareDeadlines puts the earlier first and none last.
func compareDeadlines(a, b time.Time) int {
	switch {
	case a.IsZero() && b.IsZero():
		return 0
	case a.IsZero():
		return 1
	case b.IsZero():
		return -1
	}
	return a.Compare(b)
}
