package queueing

// ErlangB is erlangB.
func ErlangB(load float64, servers int) float64 { return erlangB(load, servers) }

// MaxServers is maxServers.
const MaxServers = maxServers
