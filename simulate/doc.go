// Package simulate runs a whole mesh on virtual time: routers, prefill and decode workers, block
// stores, KV transfers and the network between them.
//
// It holds no policy. Every request passes the state machines that live services drive:
// pkg/routing, pkg/joining, pkg/worker with its scheduler and KV cache, pkg/offload and
// pkg/blockstore for stores, and both sides of pkg/kvtransfer. What this package adds is what they
// run on: one clock, a heap of events, a network with latency and bandwidth, step times of a
// profile, and what etcd and NATS deliver.
//
// Equal seeds give equal results. A Cluster is used by one goroutine and starts none.
package simulate
