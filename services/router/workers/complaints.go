package workers

import "time"

// complainEvery is how often at most the same thing is complained of.
const complainEvery = 10 * time.Second

// Complaints spaces out what would be said too often. Its user keeps it from concurrent
// use.
type Complaints struct {
	last   time.Time
	Burst  int // that may be said at once besides the first
	said   int // of these
	unsaid int // since
}

// Due reports whether it is time to say it, and how often it was not said before.
func (c *Complaints) Due(now time.Time) (unsaid int, due bool) {
	recent := !c.last.IsZero() && now.Sub(c.last) < complainEvery
	if recent && c.said < c.Burst {
		c.said++
		return 0, true
	}
	if recent {
		c.unsaid++
		return 0, false
	}
	unsaid = c.unsaid
	c.last, c.unsaid, c.said = now, 0, 0
	return unsaid, true
}
