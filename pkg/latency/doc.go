// Package latency holds what is known of how long things take and may take.
//
//   - Models of an engine's steps: StepTime learns one on line, a Profile is one that
//     was measured or published, Fit makes its terms; routers and the simulator
//     predict with them.
//   - What was measured: Histogram counts latencies in bounded memory; QuantileRanks
//     are the interval of a quantile, EffectiveSize says how many independent samples
//     those are worth that depend on one another.
//   - What was promised: an SLO is written ttft:p99<500ms, a Budget says how long a
//     request's stages may take and which of them broke it, and Window keeps what
//     they took in the last while.
//
// Anything under pkg, services and cmd may import it. It starts no goroutines and
// reads no clock. It opens nothing: profiles are read from readers and written to
// writers that are the caller's.
package latency
