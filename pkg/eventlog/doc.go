// Package eventlog keeps what state machines took in and what they did, so that it can be
// done again: a file of events with their times, the answers of the functions that the state
// machine called, and its actions. Package replay reads it.
//
// Drivers of cores may import it; cores must not. A Log owns one goroutine, which compresses
// and writes; Close ends it. Nothing waits for the disk: a log that cannot keep up ends.
//
// Lock order: the lock under which a Core is called, then Log.mu.
package eventlog
