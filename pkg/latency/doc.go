// Package latency holds what is known of how long things take and may take.
//
//   - Models of an engine's steps: StepTime learns one on line, a Profile is one that
//     was measured or published, Fit makes its terms; routers and the simulator
//     predict with them.
//   - What was promised: a Budget says how long a request's stages may take and which
//     of them broke it, and Window keeps what they took in the last while.
//   - How steps keep the time of a token: what workers plan with, and others predict.
//
// Anything under pkg, services and cmd may import it. It starts no goroutines and
// reads no clock. It opens only the files that ReadProfileFile is asked for.
package latency
