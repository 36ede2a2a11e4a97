// Package cpu is the engine that runs a model on the processor: C through cgo,
// no library besides, so that go build is all it takes.
//
// What it computes is defined bit for bit, whatever the batch, the chunking, the
// number of threads and the instruction set: docs/decisions/0002-cpu-arithmetic.md,
// with int8 weights 0011-int8-weights.md, with int4 weights 0012-int4-weights.md, with
// keys and values in int8 0013-int8-kv.md.
//
// cmd and services construct it; everything else knows the engine.Engine
// interface only. Weights own the packed weights and the compute threads, which
// are C's; an engine owns its KV pages and scratch memory. All of it lies
// outside the Go heap. Goroutines run inside Load, where it keeps or reads packed
// weights (internal/packedweights), inside Step, where they share log probabilities of
// prompts, and one of an engine's pages takes memory ahead of its use (hostpages), for which
// Close waits.
//
// Lock order: the threads' turn, then the lock of an engine's pages or the weights'
// mutex, which are never held together. While Step runs C it holds the turn alone.
package cpu
