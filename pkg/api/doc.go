// Package api holds the words of the protocol: those that people and programs
// outside a process read, in flags, JSON, labels of metrics, keys of etcd, subjects
// of NATS, headers and errors. They are public: none is ever changed.
//
// Every package may import it. Of ours it imports proto alone; it starts no
// goroutines and does no I/O.
package api
