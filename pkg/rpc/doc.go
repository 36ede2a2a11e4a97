// Package rpc builds every gRPC server and client of Tandem, so that all of
// them recover, log, count, authenticate, limit and time out alike.
//
// Services, commands and tests import it; it imports no service. A Server owns
// its gRPC server, whose goroutines Stop ends; the caller owns listeners until
// Serve has them, and connections that Dial made.
//
// # Order on a server
//
// From the outside in, for unary calls and streams alike:
//
//  1. context: x-request-id goes into the context, so that all below log it, and
//     so does the span that W3C's traceparent names, if there is one;
//  2. metrics: count and time every call, whatever becomes of it;
//  3. logging: one short line when a call ends; none for health and reflection, nor
//     for methods that log for themselves;
//  4. recovery: a panic below becomes INTERNAL, so that 2 and 3 see its status,
//     and its stack is logged;
//  5. decoding: a message that does not decode, or is too large, becomes
//     INVALID_ARGUMENT that names the field; grpc-go alone says INTERNAL or
//     RESOURCE_EXHAUSTED for what is the caller's mistake. So the server's codec
//     hands such a message on as if it were good, with the reason beside it;
//  6. push-back: an error with a RetryInfo also sets the trailer
//     grpc-retry-pushback-ms, which gRPC clients obey by themselves;
//  7. the end of the server: its stop ends health watches and reflection
//     sessions, which would otherwise outlast it;
//  8. the role of the caller's certificate, where connections have TLS; not for health;
//  9. authentication, if configured, and the audit of who called; not for health;
//  10. timeout: unary calls that come without a deadline get one. Streams live
//     as long as their caller wants.
//
// The message of a call is received behind all of these, from those alone who may call:
// RegisterService wraps the methods of unary calls, whose message comes before the interceptors
// otherwise.
//
// # Order on a client
//
//  1. context: the request id goes into x-request-id, and the context's span, if
//     it is sampled, into traceparent and tracestate;
//  2. metrics and logging: failures are logged at debug, since the caller decides
//     what they mean;
//  3. timeout: unary calls without a deadline get one.
//
// Nothing here calls again: that is the business of the module client, and of joining in routers.
package rpc
