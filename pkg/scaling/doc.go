// Package scaling computes how many workers each pool should have: from the requests that
// come, their lengths, how long steps take on the workers, and what requests want of their
// first and later tokens.
//
// Routers, the simulator and whoever scales workers import it. It is a core: it starts no
// goroutine and reads no clock, and equal histories give equal answers. A Scaler is not safe
// for concurrent use.
package scaling
