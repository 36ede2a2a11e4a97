package client

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

const (
	attemptsPerRouter  = 5
	defaultLongestWait = 30 * time.Second
	// The pause before another try is the first of these at most, then twice as long each
	// time, and the second at most, unless the router asks for more.
	firstPause, maxPause = 100 * time.Millisecond, 2 * time.Second
)

// retries bounds what is sent again.
type retries struct {
	attempts int
	longest  time.Duration // wait that a router may ask for, and pause; 0 is none
}

// try calls a router, and if that fails and another try is safe and may help, the next one. once
// says whether an answer began, and whether it came further than before: the number of tries and the
// length of pauses are counted from there, and what routers asked before is over.
//
// UNAVAILABLE goes to the next router at once, and after each round of all routers there is a
// pause, at least as long as any of them asks for. RESOURCE_EXHAUSTED goes on after the time that
// the router asks for; without one, or after an answer began, it is final. So is every other code.
func (c *Client) try(ctx context.Context, once func(inferencev1.InferenceClient) (began, further bool, err error)) error {
	pause := min(firstPause, c.retries.longest)
	var until time.Time // the latest that a router asked to wait for, since there was progress
	// try counts the tries without progress, round those since the last pause.
	for turn, try, round := int(c.next.Add(1)-1), 1, 1; ; turn, try, round = turn+1, try+1, round+1 {
		began, further, err := once(c.routers[turn%len(c.routers)])
		if further {
			until = time.Time{} // others may have asked before the answer went on
			if try, pause = 1, min(firstPause, c.retries.longest); pause == 0 {
				round = 1 // there are no pauses that could begin one
			}
		}
		after, asks := RetryAfter(err)
		if t := time.Now().Add(after); t.After(until) {
			until = t
		}
		switch {
		case err == nil || try >= c.retries.attempts:
			return err
		case status.Code(err) == codes.Unavailable && Reason(err) != reasonRetryBudget:
			if round < len(c.routers) {
				continue
			}
		case status.Code(err) == codes.ResourceExhausted && asks && !began:
		default:
			return err
		}
		// Those who were refused together do not come back together.
		asked := time.Until(until)
		wait := max(asked, pause/2) + rand.N(pause/2+1)
		if deadline, has := ctx.Deadline(); asked > c.retries.longest || pause == 0 || has && time.Until(deadline) < wait {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return status.FromContextError(ctx.Err()).Err()
		}
		pause, round = min(2*pause, maxPause, c.retries.longest), 0
	}
}
