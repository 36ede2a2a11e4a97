// Package stats says what a sample of latencies tells. Histogram counts them in bounded
// memory, QuantileRanks are the interval of a quantile, EffectiveSize says how many
// independent samples those are worth that depend on one another, and EarlyStopping how
// many it takes to tell.
//
// Anything may import it. It starts no goroutines and reads no clock.
package stats
