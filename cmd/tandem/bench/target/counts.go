package target

import "sync/atomic"

// Counts are what has come so far in a run, for its live progress. All methods are
// safe for concurrent use; the zero value is ready.
type Counts struct {
	admitted, tokens atomic.Int64
}

// Admitted is how many requests the server accepted.
func (c *Counts) Admitted() int { return int(c.admitted.Load()) }

// Tokens is how many tokens came.
func (c *Counts) Tokens() int64 { return c.tokens.Load() }
