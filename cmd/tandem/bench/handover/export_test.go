package handover

import "time"

// SpreadOf is spreadOf.
func SpreadOf(times []time.Duration) Spread { return spreadOf(times) }
