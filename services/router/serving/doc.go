// Package serving drives the life of each request: it asks for workers, joins their two token
// streams into one, turns tokens back into text, and keeps answers that clients have not read
// yet or may resume. The state machine of a request is pkg/joining.
//
// The router imports it, and package openai. Each request owns a goroutine for each
// worker stream, which hands the worker's messages to the request and sends tokens to the client,
// and one while it waits for an answer of the policy. Stop ends them and waits. Those of timers and
// of aborts are not waited for, and find nothing to do then.
//
// Lock order: request.loop, Requests.mu, request.mu, then the locks of package routingdriver;
// eventLog.mu comes after request.mu. logMemory.mu, eventLog.mu and the locks of package records
// are leaves, with two exceptions: the end of a log takes logMemory.mu, and Caller.Now, which
// must not block, runs under eventLog.mu.
package serving
