// Package queueing has the formulas that tell how long requests wait: Little's law, M/M/1, M/M/c (Erlang C), M/G/1 (Pollaczek–Khinchine),
// G/G/c (Allen–Cunneen), servers that batch, Amdahl's law and the tail of a fan-out. Each
// function names what it assumes.
//
// Rates are in requests a second and times in seconds, unless a name says otherwise; every
// function of both works in any unit that the two share. Load is rate times service time:
// the mean number of busy servers, in erlangs. The squared coefficient of variation (SCV) of
// a time is its variance over its mean squared: 0 for a constant, 1 for an exponential one.
//
// A queue that grows without bound is an error that wraps ErrUnstable. Other errors are of
// arguments: negative, infinite or not a number.
//
// Anything may import the package. It imports nothing of this repository, keeps no state
// and starts no goroutines; its functions may be called concurrently.
package queueing
