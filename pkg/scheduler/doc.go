// Package scheduler decides what one worker computes: which sequences have
// blocks, which run, and what each step of the engine holds. It is a state
// machine: Handle takes an event and the time, and answers with actions. It has
// no goroutines, clock, locks or I/O; the prefill and decode services drive it
// with real events, the simulator with virtual ones. Anything under pkg and
// services may import it. A Scheduler has one owner, who calls it from one
// goroutine at a time.
//
// # Steps
//
// At most one step is in flight. Whenever none is, Handle plans the next one
// (continuous batching): first one token of every sequence that decodes, none
// left out, then prompt chunks with what is left of Config.MaxBatchTokens, at
// most Config.ChunkTokens of them, so that a long prompt does not stall those
// that decode, and while any decode no more than Config.StepBudget allows, by what
// steps took so far. Where a step is long enough for an empty one's time not to
// matter, no further prompt is added: it would delay those that are in it. Chunks
// begin at block boundaries and end at them, but for the last of a prompt. A token
// is drawn after the last token of a prompt and after every decoded one. A step of
// those who decode allocates nothing once there were two as large; what it needs is
// allocated when a sequence gets its blocks.
//
// # Drafts
//
// With Config.MaxDrafts a sequence that decodes may have drafts of its next tokens in a
// step: what its output constraint forces, then what stood behind its last tokens before in its text;
// or with Config.EngineDrafts such as the engine makes, which is only told how many it may. Which
// get how many is decided by how often drafts were right and by what steps and drafts took (package
// speculation). The engine says how many, from the first on, are what it drew; those are sampled as
// if each had had a step of its own. The rest leave nothing behind: nothing counts, publishes or sends what is beyond a sequence's
// tokens. For its drafts a sequence may have one block more than it needs, which it gives
// back before anybody is preempted.
//
// # Blocks
//
// A sequence begins with the blocks of its prompt and of one token more, and takes
// another when its last is full. It is admitted when there are enough, besides, for
// what it and all others who have blocks are expected to grow by: for the share of
// the tokens which they may generate that sequences lately did (Config.OutputShare at
// first). Where that was wrong and there is no block left, the least urgent one of
// those that no transfer reads or writes, by priority and then the last to arrive, is
// preempted: its blocks go back, it waits again and computes again what the prefix
// cache has lost by then, to the same bits (but for KV that came approximate), and
// until others have ended everything is expected. So the most urgent one always runs
// to its end. One that needs a block and is the least urgent itself waits with what
// it has.
//
// Full blocks whose KV is complete are published to the prefix cache at once and
// found by later requests. Blocks go back when the sequence is over, no step in
// flight contains it, and no transfer reads or writes it; while a transfer could
// still write them they are in quarantine.
//
// # What is not finite
//
// A sequence that a step could draw no token for, since its logits are not finite, fails
// alone. Its blocks, and all that was published behind them, leave the prefix cache, also
// for those who would share them; who shares them already goes on and finds out by
// himself. Once nobody holds such a block it is in quarantine until it was overwritten
// (Scrub), so that nothing of it gets into another sequence.
//
// # Saving and restoring
//
// Where somebody else keeps blocks (SaveLimit), cached prefixes are saved there
// before they are evicted, coldest first, once less than half of the pool is free
// or was offered already; what sequences hold comes last. Blocks cannot be evicted
// while they are read for that: when a request does not fit that would without the
// saves, they are asked to stop, and none begins until it has them. What a save did
// not save is offered once more.
//
// A Restore brings a prefix back: it takes blocks at once or is refused, leaves as
// many as its request says that it needs, and keeps what came until that request has
// been submitted.
//
// # Order and fairness
//
// Requests wait by priority, then by when their first token is due (those without such a
// time last), then by how much of their prompts is to be computed (to the next power of
// two, shorter ones first), then deadline, then arrival, and are taken in this order;
// those that were preempted come first. One that does not fit
// now does not block those behind it: they may overtake. But only
// Config.MaxOvertakes requests that came later may be taken before a waiting one,
// for whatever reason: bigger, less urgent, or of a kind that needs a place in the
// batch. After that it goes to the front, and as long as it does not fit nothing
// else is taken. So a large request waits for no more than a bounded number of
// small ones, and small ones wait behind a large one only until what runs has
// ended. Those whose KV has arrived join the batch in the same order, and there the same
// bound holds once more.
//
// Prompts that already run share the prompt budget of a step by the same order;
// one that got nothing for maxSkippedSteps steps comes first in the next.
package scheduler
