// Package replay records the cores of routers and workers in logs of package eventlog, and
// does again what a log says, to see whether the cores still do the same, or what routing would
// have done with another configuration.
//
// Drivers of cores, and the binary, import it; cores must not. It starts no goroutines.
package replay
