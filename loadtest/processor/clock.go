package processor

import "time"

// ThreadClock is a clock to take differences of: the processor time of whichever thread reads it,
// so that other programs do not count, or wall time where the system does not say that. Its name
// is "processor" or "wall".
func ThreadClock() (now func() time.Duration, name string) {
	if _, known := ThreadTime(); known {
		return func() time.Duration { used, _ := ThreadTime(); return used }, "processor"
	}
	began := time.Now()
	return func() time.Duration { return time.Since(began) }, "wall"
}
