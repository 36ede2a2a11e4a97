package calibrate

import "context"

// DispatchDelayMost is the maximum p99 dispatch delay, milliseconds, at which streams
// count as held.
const DispatchDelayMost = 1.0

// findSteps bounds the measurements of a search; findClose is the relative width at which
// it stops.
const (
	findSteps = 12
	findClose = .1
)

// Held reports whether the generator held the plan's streams: every request succeeded and
// was sent on time, and the streams existed.
func (r *Result) Held() bool {
	return r.Requests > 0 && r.Completed == r.Requests && r.DispatchDelay.P99 < DispatchDelayMost &&
		r.StreamsMax >= r.Plan.Streams*8/10
}

// FindMax searches for the most streams that are held: it doubles the plan's streams
// until a measurement fails, then bisects. all are the results in order; best is nil if
// not even the plan's streams were held.
func FindMax(ctx context.Context, p Plan, measure func(context.Context, Plan) (*Result, error)) (best *Result, all []*Result, err error) {
	low, high := 0, 0
	for range findSteps {
		r, err := measure(ctx, p)
		if err != nil {
			return best, all, err
		}
		all = append(all, r)
		if r.Held() {
			best, low = r, p.Streams
		} else {
			high = p.Streams
		}
		switch {
		case high == 0:
			p.Streams *= 2
		case low == 0 || float64(high-low) <= findClose*float64(high):
			return best, all, nil
		default:
			p.Streams = (low + high) / 2
		}
		if p.Validate() != nil {
			return best, all, nil // more than a plan allows
		}
	}
	return best, all, nil
}
