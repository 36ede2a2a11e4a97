package evidence

import (
	"context"

	"github.com/tandem-serving/tandem/loadtest/search"
)

// Bisect, Each, NewRatio, ShortDay and SizesOf are for tests.
var (
	Bisect   = bisect
	Each     = each
	NewRatio = newRatio
	ShortDay = shortDay
	SizesOf  = sizesOf
)

// Verdict runs a rate of a scenario until it is certain whether enough requests meet the SLO, and to
// its end. It says what each finds, and how many requests it sent.
func Verdict(ctx context.Context, text string, rate float64) (early, whole bool, sent [2]int, err error) {
	t, err := newTrial(".", text)
	if err != nil {
		return false, false, sent, err
	}
	early, err = t.passes(ctx, rate, 0)
	if err != nil {
		return false, false, sent, err
	}
	sent[0] = len(t.last.Records)
	f, err := t.at(ctx, rate, 0)
	if err != nil {
		return false, false, sent, err
	}
	sent[1] = len(t.last.Records)
	return early, f.SLOAttainment >= search.Share, sent, nil
}
