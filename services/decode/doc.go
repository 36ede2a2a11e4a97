// Package decode is the decode worker: it reserves KV blocks before a transfer,
// receives the KV, runs continuous batching and streams tokens. It runs a prefill
// itself when the router asks for that.
//
// cmd/tandem builds it; nothing else imports it but tests. A Service owns the
// goroutines of its Member and of its KV receiver, all of which end with Run;
// each sequence runs in its gRPC handler's goroutine.
package decode
