// Package prefill is the prefill worker: it computes prompts in chunks, streams
// their KV to decode workers layer by layer while later layers still compute,
// and samples the first token. It does all of a request, too, decoding included,
// when the router asks for that.
//
// cmd/tandem builds it; nothing else imports it but tests. A Service owns the
// goroutines of its Member and of its KV sender, all of which end with Run; each
// request runs in its gRPC handler's goroutine, beside which one waits for its transfer
// and one for what is fetched: the request does not end before both have told the worker.
//
// Where there are block stores (Deps.Stores), it puts cached prefixes there that
// it would evict soon, and fetches what it lacks of a prompt when that is quicker
// than computing it by what was measured. Neither is waited for longer than that:
// a store that fails, or is slow, costs hits and nothing else. Each fetch and each
// put has a goroutine, and one watches the stores; all end with Run.
//
// Lock order: transfers.mu, then those of the KV sender. The lock of storing's loop and the
// driver's are never held together: the driver gives saves to storing through a channel.
package prefill
