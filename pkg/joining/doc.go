// Package joining is one request's life in the router: it joins the token
// streams of a prefill and a decode worker into one and survives the deaths of
// both. It is a state machine, Handle(now, event) → actions:
//
//	state     event                                   next state, action
//	idle      Start                                   asking, Ask
//	asking    Dispatched                              running, OpenDecode
//	asking    Refused                                 finished
//	running   decode has reserved                     running, OpenPrefill
//	running   a token                                 running, Deliver
//	running   the last token, or a stop text          finished
//	running   a worker fails, and attempts are left      asking, Close, Release, Ask
//	running   a worker fails, and none is left        finished, Close, Release
//	running   the first token is late                 running, AskHedge
//	running   Dispatched, of a hedge                  running, OpenDecode
//	running   a worker of one of two attempts fails      running, Close, Release
//	running   the first token of one of two attempts     running, Close, Release, Deliver
//	any       Abort                                   finished
//	finished  the last stream is Closed               Done; Release, if an attempt was on
//
// A request is tried on one choice of workers at a time, but for one that is hedged. When a worker refuses,
// dies, falls silent or breaks the protocol, both streams of the attempt are closed
// and other workers are asked for, with the tokens that were delivered as part of the
// prompt: randomness is drawn by offset, so the tokens are the same as if
// nothing had happened. There is exactly one Finish, and every stream that was
// opened is closed.
//
// Whoever drives it imports it. It owns what was generated so far and the times that the
// latency budget is made of. It starts no goroutine, reads no clock, takes no lock and
// does no I/O: its driver serializes calls.
package joining
