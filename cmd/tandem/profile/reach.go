package profile

import (
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// reach finds the best rates.
func (r *Result) reach(costs engine.Costs) {
	for _, p := range r.Points {
		prefill, decode := costs.Step(p.work)
		switch {
		case p.Kind == Prefill:
			r.FLOPsPerSecond = max(r.FLOPsPerSecond, prefill.FLOPs/p.MedianMs*1000)
		case p.Kind == Decode && p.Batch == 1:
			r.ReadBytesPerSecond = max(r.ReadBytesPerSecond, decode.ReadBytes/p.MedianMs*1000)
		}
	}
}

// limitsApart is how much lower than the best of several measurements of the same
// limits the others may be, as a share, on a machine that does nothing else.
const limitsApart = 0.15

// Limits makes one of several measurements of the same limits, from before a profile
// was taken to after: the best of each rate. It is valid if each was and they agree.
// How fast the machine should be nobody knows: it is compared with itself.
func Limits(measured ...latency.Limits) latency.Limits {
	best := latency.Limits{Valid: len(measured) > 0}
	for _, l := range measured {
		best.FLOPsPerSecond = max(best.FLOPsPerSecond, l.FLOPsPerSecond)
		best.ReadBytesPerSecond = max(best.ReadBytesPerSecond, l.ReadBytesPerSecond)
	}
	for _, l := range measured {
		if !l.Valid || l.FLOPsPerSecond < (1-limitsApart)*best.FLOPsPerSecond || l.ReadBytesPerSecond < (1-limitsApart)*best.ReadBytesPerSecond {
			best.Valid = false
		}
	}
	return best
}
