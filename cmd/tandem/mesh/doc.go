// Package mesh builds Tandem's parts in one process: the router, any number of prefill and
// decode workers, and an embedded etcd and NATS server unless the caller names others.
// `tandem up` and `tandem serve` are thin layers over it, and the integration suite builds
// its in-process clusters with it.
//
// Only cmd/tandem and tests import it. A Mesh owns all that it starts; Run returns when all
// of it has stopped.
package mesh
