package routing

import "time"

// Anew is what Next and BlockKeys say when nothing is kept of earlier calls.
func (rt *Router) Anew(model string, version Version) (time.Time, bool, []BlockKey) {
	rt.workersDue.known, rt.grouped = false, nil
	at, due := rt.Next()
	return at, due, rt.BlockKeys(model, version)
}
