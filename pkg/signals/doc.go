// Package signals carries load reports, KV events, queue depths and what routers tell each other over NATS.
//
// Services and commands import it; it imports no service. Signals are advice:
// with NATS away routing gets worse and nothing breaks, so nothing here blocks
// or fails its caller, and what could not be sent is dropped and counted, never
// replayed late.
//
// # Subjects
//
//	tandem.v1.load.{role}.{worker id}
//	tandem.v1.kv.{worker id}
//	tandem.v1.queue.{model}
//	tandem.v1.router.{router id}
//	tandem.v1.tenants.{router id}
//	tandem.v1.view
//
// The last is a question, which routers answer: one that starts while etcd is away
// asks the others for the workers that they last saw there.
//
// Ids and model names may hold characters that NATS gives a meaning to, such as
// the dots of "10.0.0.1:7071". In a subject each byte other than A-Z, a-z, 0-9,
// "-" and "_" is written as "%" and two upper-case hexadecimal digits, and an
// empty name as "%". Readers take ids from a signal's Origin, not from its subject.
//
// # Sequence
//
// Each signal carries its sender's epoch and a number that counts its subject's
// signals from 1. A signal that was dropped used up its number, so its reader
// sees a gap.
//
// # Traces
//
// A signal that a sampled request caused carries W3C's traceparent as a header,
// and whoever takes it in makes a span of that in the request's trace. Only KV
// events have a cause: the others are of all requests together.
//
// # Goroutines
//
// A Conn has one goroutine that sends, besides those of the NATS client; Close
// ends them. Those call the handlers of a Subscribe, one after the other;
// once the function that it returns has returned, no more.
package signals
