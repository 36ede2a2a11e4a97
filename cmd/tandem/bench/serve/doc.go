// Package serve measures a server under load from beginning to end: one rate, one
// concurrency, a sweep over rates, or the search for the highest rate that meets an
// SLO. It joins the other packages of cmd/tandem/bench: a workload is driven against
// a target, the records are summarized and explained, and a report comes out.
//
// Commands import it. It starts no goroutines that outlive Run.
package serve
