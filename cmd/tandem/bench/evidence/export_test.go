package evidence

import (
	"context"
	"io"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// Bisect and the others are for tests.
var (
	Bisect         = bisect
	Each           = each
	NewDrawnTraces = newDrawnTraces
	NewRatio       = newRatio
	ShortDay       = shortDay
	SizesOf        = sizesOf
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

// FixedHours is how many worker-hours a fixed size has, and of how many hours, in a day that is shorter by a factor.
func FixedHours(ctx context.Context, o Options, workers int, times float64) (got, of float64, err error) {
	d := fixedRun(workers, fixedShares[0])
	err = d.measure(ctx, o, times)
	return d.hours, dayLasts.Hours(), err
}

// ScaleDecisions is how many decisions all routers make a second beside so many workers, and how many
// requests come.
func ScaleDecisions(ctx context.Context, o Options, workers int, lasts time.Duration) (decisions, requests float64, err error) {
	s, err := measureScale(ctx, o, workers, lasts)
	_, decisions = s.rates()
	return decisions * scaleRouters, float64(s.figures.Requests) / lasts.Seconds(), err
}

// MooncakeRefused is how many of so many requests are refused where nothing should be.
func MooncakeRefused(ctx context.Context, o Options, requests int, speed float64) (int, error) {
	d, err := newDrawnTraces(o)
	if err != nil {
		return 0, err
	}
	defer d.Close()
	path, err := d.write("mooncake.jsonl", func(w io.Writer) error { return d.fits.MooncakeConversation.WriteTrace(w, requests, 1) })
	if err != nil {
		return 0, err
	}
	s, err := mooncakeRun{trace: path, requests: requests, speed: speed, memoryGiB: 50}.measure(ctx, o)
	return s.Rejected, err
}

// DistServeRefused is the same for an application of DistServe on one GPU.
func DistServeRefused(ctx context.Context, o Options, perGPU float64) (int, error) {
	a := application{name: "code completion", model: opt13B, gpus: 1, lengths: humanEval, ttft: 0.1, tpot: 0.1, keeps: true}
	on := deployment{layout{[]group{opt13B.workers("decode", 1, 1)}, true}, aggregated, free, 200}
	t, err := newTrial(o.Profiles, a.scenario(o, on, 1))
	if err != nil {
		return 0, err
	}
	f, err := t.at(ctx, perGPU, 0)
	return f.Rejected, err
}

// WaitsOf is the measured mean wait of a run of one worker that serves one request at a time, and that of Lindley's
// recursion.
func WaitsOf(run *record.Run) (measured, recursion float64, err error) {
	w, err := waitsOf(run)
	return w.measured, w.recursion, err
}

// QueueStep is how long its steps take.
const QueueStep = queueStep

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

// DrawCluster draws a cluster at random, as the text of its scenario, with the rate that it gets.
func DrawCluster(o Options, number uint64) (text string, rate float64, err error) {
	c := random{}.draw(number)
	_, err = newTrial(o.Profiles, c.text+"auto}\n")
	return c.text, c.rate, err
}

// LiveRows are the rows of section live, and its ratio, of a mesh with one rate, whose live and simulated figures are
// these.
func LiveRows(live, simulated report.Figures) ([][]string, float64) {
	r := Options{}.liveResult([]liveStep{{"some workers", 10, live, simulated}})
	return r.Tables[0].Rows, r.Ratios[0].Value
}

// RandomRows are the rows of section random of clusters that serve so much of ten requests a second: aggregated,
// disaggregated and auto.
func RandomRows(clusters ...[3]float64) ([][]string, error) {
	var all []*randomCluster
	for _, c := range clusters {
		all = append(all, &randomCluster{rate: 10, aggregated: c[0], disaggregated: c[1], auto: c[2]})
	}
	r, err := randomResult(all)
	if err != nil {
		return nil, err
	}
	return r.Tables[0].Rows, nil
}
