package evidence

import (
	"context"

	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// Bisect, Each, NewDrawn, NewRatio, ShortDay and SizesOf are for tests.
var (
	Bisect   = bisect
	Each     = each
	NewDrawn = newDrawn
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
	return mapResult([]mapped{{point: point{prompt: 256, output: 16, bandwidth: 50e9}, capacities: capacities{1, 1, 1}}}, o, tight, []int{256}, []int{16}, []float64{50e9}).Notes
}

// MapTable is the table of two points, of which nothing can serve the first, and the ratios.
func MapTable() ([][]string, []Ratio) {
	served := mapped{point: point{prompt: 256, output: 16, bandwidth: 50e9}, capacities: capacities{2, 4, 4}}
	none := mapped{point: point{prompt: 512, output: 16, bandwidth: 50e9}}
	r := mapResult([]mapped{none, served}, Options{}, tight, []int{256, 512}, []int{16}, []float64{50e9})
	return r.Tables[0].Rows, r.Ratios
}

// Mapped is the table and the notes of a map of points that differ in bandwidth, and its ratios, where a search
// finds capacity.
func Mapped(ctx context.Context, o Options, capacity func(mode string, bandwidth float64, round int) float64) (*Result, error) {
	profile, err := latency.ReadProfileFile(o.profile(mapProfile))
	if err != nil {
		return nil, err
	}
	bandwidths := []float64{50e9, 3.125e9}
	var group []point
	for _, b := range bandwidths {
		group = append(group, point{256, 16, tight, b})
	}
	all, err := measureGroups(ctx, o, [][]point{group}, profile, func(_ context.Context, _ Options, p point, _ int, mode string, _, _ float64, round int) (float64, error) {
		return capacity(mode, p.bandwidth, round), nil
	})
	if err != nil {
		return nil, err
	}
	return mapResult(all, o, tight, []int{256}, []int{16}, bandwidths), nil
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
