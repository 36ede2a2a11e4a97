// Package drafting makes speculative decoding with a draft model: an engine.Engine that wraps
// the engine of a large model and has a small model's engine draft the next tokens.
//
// If a step asks for drafts (engine.Sample.DraftRequest), the small model draws them with the
// request's parameters, seed and offsets. Both models then use the same random numbers, and
// often draw the same token. The step verifies the drafts, so its tokens do not depend on the
// small model, even if that fails.
//
// The small model has its own blocks. They remember what they hold of each sequence, by its
// name. Tokens that differ from the step's history are dropped, and missing ones computed, at
// most a chunk in each step. So the package needs no notice when a sequence is preempted, moves
// or ends: other sequences take the blocks of those that have not drafted for a while.
//
// Code that assembles a process imports it, and so do benchmarks. It starts no goroutines.
package drafting
