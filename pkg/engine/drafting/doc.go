// Package drafting has a small model guess at what a large one draws (speculative decoding):
// an engine.Engine around the large model's, with an engine of the small one beside it.
//
// Where a step asks for guesses (engine.Sample.Guesses), the small model draws them, with the
// request's own parameters, seed and offsets: both models then take the same random numbers,
// and often the same token. They are verified in the same step. Whatever the small model says, or
// if it fails, the tokens are the same.
//
// The small model has blocks of its own. What of a sequence is computed in them is known by the
// sequence's name. What a step's history does not begin with is dropped, and the rest computed, a
// chunk in each step at most. So nobody has to tell of a sequence that is preempted, goes on elsewhere
// or ends: who has not guessed for a while gives up his blocks to others.
//
// Whoever assembles a process may import it, and benchmarks. It starts no goroutines.
package drafting
