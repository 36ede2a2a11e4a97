// Package protocolmodel has no code but tests: it joins the two state machines of the KV
// transfer by a network that delays, cuts and spoils, and checks after every
// step what pkg/kvtransfer promises. Nobody imports it.
package protocolmodel
