// Package tracecost measures what tracing costs: the CPU time that a mesh spends
// on a request with tracing at some share and without, from two meshes of
// processes that serve the same requests in turns.
//
// Commands import it. It starts the meshes, a collector that counts spans, and
// the clients that send; Measure ends all of them before it returns.
package tracecost
