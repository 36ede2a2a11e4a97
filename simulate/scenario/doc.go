// Package scenario reads the files that describe simulated clusters: model, network, workers,
// routers, traffic and what happens meanwhile.
//
// Sections that live processes have flags for take the names, defaults and checks of those
// flags. Every error begins with file:line and says what to do.
//
// The binary imports it. It starts no goroutines.
package scenario
