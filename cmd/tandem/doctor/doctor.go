// Package doctor checks a mesh and the machine that it runs on, and says what to do about what is
// wrong. It changes nothing.
//
// cmd/tandem/internal/commands imports it. Run starts a goroutine for each question and waits for
// all of them.
package doctor

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Status is what came of a check.
type Status string

// Statuses.
const (
	// OK: nothing to do.
	OK Status = "ok"
	// Warning: it works, but something should be looked at.
	Warning Status = "warning"
	// Failed: something does not work.
	Failed Status = "failed"
	// Skipped: it was not checked.
	Skipped Status = "skipped"
)

// Check is one thing that was looked at.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	// Detail is what was found.
	Detail string `json:"detail"`
	// Advice is what to do about it; empty: nothing.
	Advice string `json:"advice"`
}

// String is the detail and the advice.
func (c Check) String() string {
	if c.Advice == "" {
		return c.Detail
	}
	return c.Detail + ": " + c.Advice
}

// Question looks at one thing until ctx ends, at most.
type Question func(ctx context.Context) []Check

// Run asks all questions at once, each with a deadline of its own, and returns what they found in
// their order.
func Run(ctx context.Context, timeout time.Duration, questions ...Question) (checks []Check) {
	found := make([][]Check, len(questions))
	var all sync.WaitGroup
	for i, ask := range questions {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			found[i] = ask(ctx)
		})
	}
	all.Wait()
	for _, f := range found {
		checks = append(checks, f...)
	}
	return checks
}

// Count is how many checks have a status.
func Count(checks []Check, status Status) (n int) {
	for _, c := range checks {
		if c.Status == status {
			n++
		}
	}
	return n
}

// maxNamed is how many workers a detail names.
const maxNamed = 5

// listed are names in one line, with the number of those beyond maxNamed.
func listed(names []string) string {
	if more := len(names) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}
