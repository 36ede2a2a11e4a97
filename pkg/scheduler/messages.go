package scheduler

import (
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// SequenceID names a sequence for as long as the scheduler knows it. The driver
// chooses it and never uses one twice.
type SequenceID uint64

// Kind is which phases of a sequence run on this worker.
type Kind int

// The kinds.
const (
	// Full computes the prompt and generates.
	Full Kind = iota
	// PrefillOnly computes the prompt and samples one token. Its KV is shipped
	// to another worker, so its blocks are also held by a transfer.
	PrefillOnly
	// Receive reserves blocks, into which a transfer writes, and generates once
	// KVArrived says that the prompt's KV is there.
	Receive
	// Restore reserves blocks for Tokens, which are whole blocks, into which a
	// transfer writes what another worker computed. KVArrived publishes them and
	// finishes the sequence; they stay until TransferDone, so that they are there
	// for whom they were fetched. It is refused with NoBlocks where it would have to
	// wait.
	Restore
)

// Request is a sequence to run.
type Request struct {
	ID   SequenceID
	Kind Kind
	// Accepted: the driver took it before the Submit, so a Drain meanwhile does not refuse it.
	Accepted bool
	// Generated is how many of Tokens were generated, not asked: not 0 for a
	// request that was started again. The first token sampled has this offset.
	Generated int
	// Tokens to compute before the first one is sampled. Not changed by anyone
	// from here on.
	Tokens []int32
	// Stop are the tokens that end the sequence. They are part of the output.
	Stop []int32
	// MaxTokens is the most tokens that the whole request may generate, those in
	// Generated included; above Generated. Not read of a Restore.
	MaxTokens int
	// Hashes are kvcache.BlockHashes of Tokens under Salt, if the driver has them already; nil:
	// they are computed.
	Hashes []kvcache.Hash
	// Fetched is how many of Tokens a Restore brought for this request: they do not count as found
	// in the prefix cache.
	Fetched int
	// Spare is how many blocks a Restore has to leave to others, beside those that it
	// takes and those that other Restores have to leave until they are released: with
	// all those of the request that it is for, that request never waits for a transfer
	// that hangs.
	Spare int
	// Sampling says how tokens are drawn.
	Sampling sampler.Params
	// Constraint is engine.Sample's.
	Constraint sampler.Constraint
	// Logprobs and TopLogprobs are as in engine.Sample.
	Logprobs    bool
	TopLogprobs int
	// Pooling, if set, gets the hidden states of Tokens, of a Full request that generates one
	// token. All of them are computed: a cached prefix has KV, but no hidden states.
	Pooling *engine.Pooling
	// PromptLogprobs asks for PromptScored of every token of the prompt but the first, with so many
	// of the likeliest. All of the prompt is computed for it, whatever is cached. Only of a Full.
	PromptLogprobs    bool
	TopPromptLogprobs int
	// Salt: prefixes are shared only under the same one.
	Salt string
	// Priority: higher first among those that wait.
	Priority int32
	// FirstIn is when its first token is due, counted from the Submit: of equal priority, those
	// due earlier come first, and those without come after them. 0: it has none.
	FirstIn time.Duration
	// EachIn is the mean time of each token after the first, at most: prompts beside it get no more of
	// steps than lets it have that. 0: it has none.
	EachIn time.Duration
	// Deadline: earlier first among those that wait with equal priority, whose first tokens are
	// due at the same time or at none, and whose prompts have about the same length; zero is
	// last. The driver cancels what is late, not the scheduler.
	Deadline time.Time
}

// Event is what happens to a scheduler: one of the types below.
type Event interface{ event() }

// Submit hands in a request.
type Submit struct{ Request Request }

// KVArrived says that the prompt's KV of a Receive or Restore sequence is in its
// blocks, and which tokens were sampled elsewhere since: at least one for Receive,
// none for Restore. The transfer's hold on the blocks of a Receive ends with it.
type KVArrived struct {
	ID      SequenceID
	Sampled []int32
	// From names who computed the KV, for whoever finds it wrong.
	From string
	// Approximate: the KV is not what this worker would have computed. Neither it
	// nor what is computed from it is shared through the prefix cache.
	Approximate bool
}

// TransferDone says that no transfer will read or write the sequence's blocks
// any more. The driver sends it exactly once for each PrefillOnly sequence that
// was not refused, and for each Receive sequence that got Reserved and that
// ended before KVArrived. A Receive sequence that waits for its KV fails with
// it. Each Restore that got Reserved has exactly one, too: instead of KVArrived,
// which fails it, or later, once its blocks need not be kept any more. Where there
// is nothing to end it is ignored.
type TransferDone struct{ ID SequenceID }

// Cancel ends a sequence in whatever phase it is. Unknown and ended ones are
// ignored.
type Cancel struct{ ID SequenceID }

// StepDone is the outcome of the last RunStep.
type StepDone struct {
	// Tokens, Accepted, Drafts, Logprobs, DraftLogprobs and PromptLogprobs as engine.Output has them; not
	// read if Err is set. A sequence without the token that it asked for draws again in the next step, if
	// that is sampler.Later, and else fails with an engine.NotFiniteError, ErrNoTokenAllowed or
	// ErrConstraintEffort.
	Tokens, Accepted []int32
	Drafts           [][]int32
	Logprobs         []sampler.Logprobs
	DraftLogprobs    [][]sampler.Logprobs
	PromptLogprobs   [][]sampler.Logprobs
	// Cut is engine.Output's.
	Cut int
	// Forced is what output constraints force after the tokens, by sequence: engine.Forcer. It is
	// kept.
	Forced []engine.ForcedTokens
	// Compute, Drafting and Reading are the engine's times.
	Compute, Drafting, Reading time.Duration
	// Err fails every sequence of the step.
	Err error
}

// Drain asks to refuse what is submitted from now on, but for what is Accepted. Nothing is
// saved any more, either.
type Drain struct{}

// Undrain takes Drain back: what is submitted from now on is taken again.
type Undrain struct{}

// SaveLimit says how many saves there may be at a time. It is 0 until the first
// one, and where nobody takes blocks. Anew: what was saved so far may be gone, and is to be
// saved again.
type SaveLimit struct {
	Saves int
	Anew  bool
}

// SaveDone ends a Save: its blocks are not read any more. Saved says that
// somebody else has them now. The driver sends it exactly once for each Save.
type SaveDone struct {
	ID    SaveID
	Saved bool
	// NotFinite: what the blocks hold is not finite, so that nobody is to have it.
	NotFinite bool
}

// Scrubbed answers a Scrub: its blocks were overwritten.
type Scrubbed struct{ Blocks []kvcache.BlockID }

func (Submit) event()       {}
func (KVArrived) event()    {}
func (TransferDone) event() {}
func (Cancel) event()       {}
func (StepDone) event()     {}
func (Drain) event()        {}
func (Undrain) event()      {}
func (SaveLimit) event()    {}
func (SaveDone) event()     {}
func (Scrubbed) event()     {}

// Action is what a scheduler wants done: one of the types below. Those that come with
// every step, *RunStep, *Sampled and *BlocksChanged, are pointers into memory that is
// used again: Scheduler.Handle says when.
type Action interface{ action() }

// Reserved says that a Receive or Restore sequence has its blocks.
type Reserved struct {
	ID SequenceID
	// Blocks is the block table of the whole prompt, and of a token more unless it is
	// a Restore. The first CachedTokens/BlockTokens of them hold their KV.
	Blocks []kvcache.BlockID
	// CachedTokens of the prompt came from the prefix cache.
	CachedTokens int
}

// Started says that a sequence left the queue: for Full and PrefillOnly that
// its first chunk is in the next step, for Receive that it joins the batch.
type Started struct {
	ID           SequenceID
	Blocks       []kvcache.BlockID
	CachedTokens int
	// Waited in this scheduler's queue, from Submit on; for Receive from
	// KVArrived on.
	Waited time.Duration
}

// Preempted says that a sequence gave its blocks to others and waits again. What it
// sampled stands; nothing is sampled twice.
type Preempted struct{ ID SequenceID }

// Resumed is Started of a sequence that was preempted after it had started. What is
// not in the prefix cache any more is computed again, what it had generated included.
type Resumed struct {
	ID     SequenceID
	Blocks []kvcache.BlockID
	// CachedTokens of what it had computed are still in the prefix cache.
	CachedTokens int
	// Waited since Preempted.
	Waited time.Duration
}

// RunStep asks the driver to run a batch and to answer with StepDone. There is
// at most one at a time.
type RunStep struct {
	Batch engine.Batch
	// Parts says what each sequence of the batch is.
	Parts []Part
}

// Part is one sequence's share of a step.
type Part struct {
	ID SequenceID
	// Prompt: the tokens are a chunk of the prompt, not one token to decode, with its drafts.
	Prompt bool
	// FirstBlock and Blocks are the whole run of blocks, counted in the sequence's
	// block table, that this part completes: chunks begin and, but for the last
	// of a prompt, end at block boundaries, so each block is completed once, unless the
	// sequence was preempted. The run of the last chunk includes the block that the prompt fills in part. For
	// parts with Prompt only.
	FirstBlock, Blocks int
}

// Sampled is a token of a sequence.
type Sampled struct {
	ID     SequenceID
	Offset int
	Token  int32
	// Logprobs is set if the request asked.
	Logprobs *sampler.Logprobs
	// Drafts and AcceptedDrafts are Finished's, so far.
	Drafts, AcceptedDrafts int
}

// PromptScored says how likely tokens of a prompt are, from the one at Offset on: each is said once,
// in order, before the first Sampled.
type PromptScored struct {
	ID       SequenceID
	Offset   int
	Logprobs []sampler.Logprobs
}

// FinishReason is why a sequence ended.
type FinishReason int

// The reasons.
const (
	// Stopped: a stop token.
	Stopped FinishReason = iota + 1
	// Length: MaxTokens, or the context is full.
	Length
	// PrefillDone: the one token of a PrefillOnly sequence was sampled, and it
	// does not end the request.
	PrefillDone
	// Cancelled by the driver.
	Cancelled
	// Failed: the step failed.
	Failed
	// Restored: the KV of a Restore sequence is in the prefix cache.
	Restored
)

// Finished is the end of a sequence that was not refused: there is exactly one.
type Finished struct {
	ID     SequenceID
	Reason FinishReason
	// PrefillCompute and DecodeCompute are the engine time of the steps that the
	// sequence was part of.
	PrefillCompute, DecodeCompute time.Duration
	// Drafts were verified for it here, and AcceptedDrafts of them were right.
	Drafts, AcceptedDrafts int
	// Err is set with Failed.
	Err error
	// NotFinite is set if Err is an engine.NotFiniteError.
	NotFinite *NotFinite
}

// NotFinite is what a sequence had in its blocks when its logits were not finite. None of the
// blocks is found in the prefix cache any more, and they stay as they are until the Scrub
// that names them.
type NotFinite struct {
	// Blocks hold the KV of Tokens tokens.
	Blocks []kvcache.BlockID
	Tokens int
	// Origins says who computed a block, by its index; "": this worker. The block that the
	// tokens of a prompt that a transfer brought, Received of them, fill in part is counted
	// as the worker's own, since others come behind them: theirs is From.
	Origins  []string
	Received int
	From     string
}

// Origin is who computed the KV of a position; "": this worker.
func (s *NotFinite) Origin(position, blockTokens int) string {
	block := position / blockTokens
	if position < s.Received && block == s.Received/blockTokens {
		return s.From
	}
	return s.Origins[block]
}

// RefuseReason is why a request was not taken.
type RefuseReason int

// The reasons.
const (
	// QueueFull: too many wait already.
	QueueFull RefuseReason = iota + 1
	// NeverFits: more blocks than the worker has, or more tokens than the
	// context.
	NeverFits
	// Draining: the worker leaves.
	Draining
	// Invalid: the request contradicts itself or names a sequence that is still
	// known. Drivers check requests before; this is their fault.
	Invalid
	// NoBlocks: a Restore would have to wait for blocks, or others do.
	NoBlocks
)

// Refused answers a Submit that was not taken. Nothing of it is left.
type Refused struct {
	ID     SequenceID
	Reason RefuseReason
}

// Released says that all blocks of a finished sequence were given back: there is
// exactly one, with or after Finished, and the scheduler has forgotten the
// sequence.
type Released struct{ ID SequenceID }

// SaveID names a save.
type SaveID uint64

// Save asks the driver to save a cached prefix elsewhere before it is evicted, and
// to answer with SaveDone. Its blocks hold their KV and do not change until then.
// Nobody waits for it.
type Save struct {
	ID SaveID
	kvcache.SaveCandidate
}

// StopSave asks to end a save soon, since its blocks are needed. SaveDone has to
// come all the same; what was not saved may be offered once more.
type StopSave struct{ ID SaveID }

// Scrub asks the driver to overwrite blocks that nobody holds, and to answer with
// Scrubbed: what is in them must not get into another sequence. They are in quarantine
// until then.
type Scrub struct{ Blocks []kvcache.BlockID }

// BlocksChanged is a change of the prefix cache.
type BlocksChanged struct{ Stored, Removed []kvcache.Hash }

func (Reserved) action()       {}
func (Started) action()        {}
func (Preempted) action()      {}
func (Resumed) action()        {}
func (*RunStep) action()       {}
func (*Sampled) action()       {}
func (PromptScored) action()   {}
func (Finished) action()       {}
func (Refused) action()        {}
func (Released) action()       {}
func (*BlocksChanged) action() {}
func (Save) action()           {}
func (StopSave) action()       {}
func (Scrub) action()          {}
