package routing

import "time"

// DefaultConnectTimeout is how long a router tries one address of a worker.
const DefaultConnectTimeout = time.Second

// How long a router waits after all addresses of a worker failed, twice as long each time:
// up to redialMost for one that has answered before, redialStrangerMost for one that never
// did.
const (
	redialLeast        = 50 * time.Millisecond
	redialMost         = time.Second
	redialStrangerMost = 15 * time.Second
)

// Redial is when a router tries to connect to a worker again: at once after a connection was
// lost, and ever later after attempts that failed. The zero value is of a worker that was not
// tried yet.
type Redial struct {
	failures int // since it answered
	known    bool
}

// Connected takes in that the worker has answered.
func (r *Redial) Connected() { *r = Redial{known: true} }

// Failed takes in that an attempt failed, and returns how long to wait before the next. A
// random part keeps routers from coming all at once.
func (r *Redial) Failed(random Rand) time.Duration {
	most := redialStrangerMost
	if r.known {
		most = redialMost
	}
	wait := doubling(redialLeast, r.failures, most)
	r.failures++
	return wait + time.Duration(random.IntN(int(wait/2)))
}
