// Package joining is one request's life in the router: it joins the token
// streams of a prefill and a decode worker into one and survives the deaths of
// both. It is a state machine, Handle(now, event) → actions.
//
// Only the router imports it. It owns what was generated so far, the text that
// is held back, and the marks that the latency budget is made of. It starts no
// goroutine, reads no clock, takes no lock and does no I/O: its driver
// serializes calls.
//
// A request is tried on one choice of workers at a time. When a worker refuses,
// dies, falls silent or sends what it may not, both streams of the try are closed
// and another choice is asked for, with the tokens that were delivered as part of the
// prompt: randomness is drawn by offset, so the tokens are the same as if
// nothing had happened. There is exactly one Finish, and every stream that was
// opened is closed.
package joining
