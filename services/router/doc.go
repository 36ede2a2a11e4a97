// Package router takes requests, turns text into tokens, picks workers, joins
// their two token streams into one, survives their deaths and turns tokens back
// into text. It serves the Inference and Control APIs and is a client of
// Prefill, Decode and Worker. KV bytes never pass through it.
//
// Only cmd/tandem and integration tests import it. The decisions live in two
// state machines without goroutines: internal/fleet (policy and queue) and
// internal/joining (one request's life). This package drives them with real
// events.
//
// Goroutines: Run owns one for each watch, one for timers and one that publishes
// the queue; the worker pool owns one for each worker, which keeps its
// connection, and one for each prefix cache that is being listed; each request
// owns one, and that one owns one for each worker stream. Stop ends requests,
// the end of Run's context ends everything else, and both wait.
//
// Lock order: dispatcher.mu, then pool.mu. request.mu, eventLog.mu and
// records.mu are leaves.
package router
