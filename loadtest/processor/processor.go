// Package processor reports which cores this process may use, starts processes on some of
// them, and measures processor time.
//
// Anything may import it. It starts no goroutines. Only Linux supports all of it.
package processor
