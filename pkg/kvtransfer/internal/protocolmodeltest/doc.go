// Package protocolmodeltest contains only tests. They connect the two state machines of the KV
// transfer through a network that delays, cuts and corrupts, and check the guarantees of
// pkg/kvtransfer after every step. Nothing imports it.
package protocolmodeltest
