// Package swarmtest hunts for bugs: it runs random clusters under random loads and faults on
// virtual time, and checks what has to hold whatever happens.
//
// A Script is one such run, made of a seed by Generate or read from a file. Run runs it and
// returns what did not hold; Shrink makes of a script that fails the smallest one it finds
// that fails in the same way. Invariants of what happens inside are those of
// simulate.Config.Check; this package adds what clients can see: the tokens are those of an
// undisturbed worker, and a request fails only for a reason that the script gives.
//
// Only its tests use it, by "make swarm" for as long as one likes. All of it is deterministic, and used
// by one goroutine at a time.
package swarmtest
