package routing

import "time"

// Anew is what Next and BlockKeys say when nothing is kept of earlier calls.
func (rt *Router) Anew(model string, version Version) (time.Time, bool, []BlockKey) {
	rt.workersDue.known, rt.grouped = false, nil
	at, due := rt.Next()
	return at, due, rt.BlockKeys(model, version)
}

// Others is how many requests of other routers count on a worker, and their prompt tokens.
func (rt *Router) Others(ref Ref) (requests, tokens int) {
	w := rt.worker(ref)
	return w.othersTotal.count, w.othersTotal.tokens
}

// ToldLasts is how long what another router says counts.
const ToldLasts = toldLasts
