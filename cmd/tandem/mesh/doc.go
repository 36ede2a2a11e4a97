// Package mesh puts Tandem's parts together in one process: the router, any
// number of prefill and decode workers, and, where nobody named others, an
// embedded etcd and an embedded NATS server. `tandem up` and `tandem serve` are
// thin covers of it, and the integration suite builds its in-process clusters
// with it.
//
// Only cmd/tandem and tests import it. A Mesh owns everything that it started;
// Run returns when all of it has stopped.
package mesh
