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

// AddRatio is for tests.
func (r *Result) AddRatio(name string, of, by []float64, paper string) {
	r.addRatio(name, of, by, paper)
}

// MapNotes are those of a map with one point.
func MapNotes(o Options) []string {
	return mapResult([]mapped{{point: point{prompt: 256, output: 16, bandwidth: 50e9}, aggregated: 1, disaggregated: 1, either: 1}}, o, tight, []int{256}, []int{16}, []float64{50e9}).Notes
}

// MapTable is the table of two points, of which nothing can serve the first, and the ratios.
func MapTable() ([][]string, []Ratio) {
	served := mapped{point: point{prompt: 256, output: 16, bandwidth: 50e9}, aggregated: 2, disaggregated: 4, either: 4}
	none := mapped{point: point{prompt: 512, output: 16, bandwidth: 50e9}}
	r := mapResult([]mapped{none, served}, Options{}, tight, []int{256, 512}, []int{16}, []float64{50e9})
	return r.Tables[0].Rows, r.Ratios
}

// MeanTTFT is for tests.
var MeanTTFT = meanTTFT

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
