// Package logthrottle bounds how often a log says the same.
//
// Anything may import it. It starts no goroutines.
package logthrottle

import (
	"log/slog"
	"time"
)

// Throttle lets a line be logged once in each window of Every, and Burst times more. Its user
// keeps it from concurrent use.
type Throttle struct {
	Every time.Duration
	Burst int

	began   time.Time // of the window; zero: there was none
	logged  int       // in the window besides the first
	skipped int       // since a window began
}

// Due reports whether to log now, and how many lines were skipped since the last window.
func (t *Throttle) Due(now time.Time) (skipped int, due bool) {
	switch within := !t.began.IsZero() && now.Sub(t.began) < t.Every; {
	case !within:
		skipped = t.skipped
		t.began, t.logged, t.skipped = now, 0, 0
		return skipped, true
	case t.logged < t.Burst:
		t.logged++
		return 0, true
	}
	t.skipped++
	return 0, false
}

// Warn logs a warning if it is due, with how many were skipped.
func (t *Throttle) Warn(log *slog.Logger, now time.Time, message string, attributes ...any) {
	skipped, due := t.Due(now)
	if !due {
		return
	}
	if skipped > 0 {
		attributes = append(attributes, slog.Int("unsaid", skipped))
	}
	log.Warn(message, attributes...)
}
