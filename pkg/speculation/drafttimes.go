package speculation

import (
	"math/bits"
	"time"
)

// DraftTimes is what a draft takes that a model makes, by how many sequences a step has: those of
// several are made together. As in StepTimes it is that of one of the shorter steps. The zero value is
// ready.
type DraftTimes struct {
	by [10]draftsOf // by the binary logarithm of the sequences
}

// draftsOf is what a draft takes with so many sequences.
type draftsOf struct {
	ms    float64
	steps int // that it is of
}

func sizeOf(sequences int) int {
	var d DraftTimes
	return min(bits.Len(uint(max(sequences, 0))), len(d.by)-1)
}

// Observe takes a step of so many sequences in which so many drafts took so long.
func (d *DraftTimes) Observe(sequences, drafts int, took time.Duration) {
	if drafts < 1 || took < 0 {
		return
	}
	k, ms := &d.by[sizeOf(sequences)], took.Seconds()*1e3/float64(drafts)
	switch {
	case k.steps == 0 || k.steps < firstSteps && ms < k.ms:
		k.ms = ms
	case k.steps < firstSteps:
	case ms < k.ms:
		k.ms += max(ms-k.ms, -stepDown*k.ms)
	default:
		k.ms += min(ms-k.ms, stepUp*k.ms)
	}
	k.steps++
}

// Known says whether there were enough steps of about so many sequences: what fewer took may have been disturbed.
func (d *DraftTimes) Known(sequences int) bool { return d.by[sizeOf(sequences)].steps >= firstSteps }

// Ms is what a draft would take, in milliseconds; 0 if nothing is known. Where there were no steps of
// about so many sequences, the nearest ones count.
func (d *DraftTimes) Ms(sequences int) float64 {
	at := sizeOf(sequences)
	for apart := range d.by {
		for _, i := range []int{at - apart, at + apart} {
			if i >= 0 && i < len(d.by) && d.by[i].steps > 0 {
				return d.by[i].ms
			}
		}
	}
	return 0
}
