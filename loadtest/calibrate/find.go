package calibrate

import "context"

// DispatchDelayMost is the dispatch delay at p99, milliseconds, up to which a number
// of streams counts as held.
const DispatchDelayMost = 1.0

// findSteps bounds how many measurements a search takes, findClose how near its ends
// have to be, as a share.
const (
	findSteps = 12
	findClose = .1
)

// Held reports that the generator held the plan's streams: each request ended well
// and was sent on time, and the streams were really there.
func (r *Result) Held() bool {
	return r.Requests > 0 && r.Completed == r.Requests && r.DispatchDelay.P99 < DispatchDelayMost &&
		r.StreamsMax >= r.Plan.Streams*8/10
}

// FindMax looks for the most streams that are held: it doubles those of the plan
// until a measurement fails, then bisects. all are the results in their order; best
// is nil if not even the plan's were held.
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
			return best, all, nil // more than a plan can have
		}
	}
	return best, all, nil
}
