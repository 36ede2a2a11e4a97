// Package engines chooses what runs a model on this machine, the CPU, a GPU or a
// simulation of time, says how much memory each worker gets for KV, and loads the
// weights once for all workers of a process.
//
// Whoever assembles a process imports it. A Set owns the weights and the engines, and
// starts no goroutine but those of the engines.
package engines
