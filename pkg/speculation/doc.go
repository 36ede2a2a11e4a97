// Package speculation drafts the next tokens of a sequence, so that an engine can verify
// several in one step, and says how many drafts are worth their time.
//
// Lookup drafts from the sequence itself: where its last tokens stood before, what came
// after them comes again in texts that repeat their prompt. An output constraint may force
// tokens (Forced, ForcedLast). An engine may have a model that
// drafts (package drafting). OfAll is how often drafts of each Kind were right at a worker,
// Acceptance how those of one sequence differ. Planner makes of that, and of what steps and
// drafts take (StepTimes, DraftTimes), how many each sequence of a step gets.
//
// Drafts decide what a step costs and never what it gives. Everything here is a function of
// what it was told, so that a recorded worker does the same again.
//
// package scheduler imports it, and benchmarks and plans may. It starts no goroutines, and nothing in it
// is safe for concurrent use.
package speculation
