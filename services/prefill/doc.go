// Package prefill is the prefill worker: it computes prompts in chunks, streams
// their KV to decode workers layer by layer while later layers still compute,
// and samples the first token.
//
// cmd/tandem builds it; nothing else imports it but tests. A Service owns the
// goroutines of its Member and of its KV sender, all of which end with Run; each
// request runs in its gRPC handler's goroutine.
package prefill
