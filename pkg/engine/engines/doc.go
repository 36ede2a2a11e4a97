// Package engines chooses the engine for a model on this machine (CPU, GPU or simulated),
// computes how much KV memory each worker gets, and loads the weights once for all workers of
// a process.
//
// Code that assembles a process imports it. A Set owns the weights and the engines. Only the
// engines start goroutines.
package engines
