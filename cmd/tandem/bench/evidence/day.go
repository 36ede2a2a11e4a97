package evidence

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/simulate"
)

// day compares pools that follow the load of a day with the best fixed size.
type day struct{}

func (day) Name() string  { return "day" }
func (day) Title() string { return "A day: following the load, and the best fixed size" }

// dayFile is a scenario in docs/scenarios, and dayContext the context of its model.
const (
	dayFile    = "day.yaml"
	dayContext = 4096
)

// shortDay is dayFile with all durations divided by times: the curve of the load, the start of
// a worker, and the wait before a pool shrinks. Lengths and rates stay. The model sends its KV
// in fewer parts, as on the rest of the page.
func shortDay(o Options, times float64) (string, error) {
	text, err := os.ReadFile(filepath.Join(o.Profiles, "..", "scenarios", dayFile))
	if err != nil {
		return "", err
	}
	var top struct {
		Model     map[string]any   `yaml:"model"`
		Autoscale map[string]any   `yaml:"autoscale"`
		Traffic   map[string]any   `yaml:"traffic"`
		Events    []map[string]any `yaml:"events"`
		Others    map[string]any   `yaml:",inline"`
	}
	if err := yaml.Unmarshal(text, &top); err != nil {
		return "", fmt.Errorf("%s: %w", dayFile, err)
	}
	var errs []error
	shorten := func(of map[string]any, keys ...string) {
		for _, key := range keys {
			value, err := time.ParseDuration(fmt.Sprint(of[key]))
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %s: %w", dayFile, key, err))
			}
			of[key] = time.Duration(float64(value) / times).String()
		}
	}
	shorten(top.Autoscale, "start-time", "down-after")
	shorten(top.Traffic, "duration")
	for _, event := range top.Events {
		shorten(event, "at", "for")
	}
	errs = append(errs, yaml.Unmarshal([]byte(opt13B.shape(dayContext)), &top.Model))
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	short, err := yaml.Marshal(top)
	return string(short), err
}

// dayRun is a way to size the pools over a day, with its result.
type dayRun struct {
	name    string
	policy  string  // of scaling; empty: a fixed size
	target  float64 // waiting tokens a worker, for the policy "queue"; 0: the default
	prefill int     // workers, of a fixed size
	decode  int

	figures report.Figures
	hours   float64   // worker-hours while requests came, of dayLasts
	changes int       // of a pool's size
	sizes   []float64 // workers of all pools, each half hour
}

// fixedRun is a fixed size. The share of the workers prefills.
func fixedRun(workers int, share float64) *dayRun {
	prefill := max(int(math.Round(float64(workers)*share)), 1)
	return &dayRun{name: fmt.Sprintf("%d + %d, fixed", prefill, workers-prefill), prefill: prefill, decode: workers - prefill}
}

// measure simulates dayFile, shorter by a factor.
func (d *dayRun) measure(ctx context.Context, o Options, times float64) error {
	text, err := shortDay(o, times)
	if err != nil {
		return err
	}
	t, err := newTrial(filepath.Join(o.Profiles, "..", "scenarios"), text)
	if err != nil {
		return err
	}
	if d.policy == "" {
		err = t.Scenario.Fix(fmt.Sprintf("p=%d,d=%d", d.prefill, d.decode))
	} else {
		err = t.Scenario.ScaleBy(d.policy)
	}
	if err != nil {
		return err
	}
	t.Change = func(c *simulate.Config) {
		if c.Autoscale != nil && d.target > 0 {
			c.Autoscale.TargetTokens = d.target
		}
	}
	t.ends = func(c *simulate.Cluster) {
		for _, used := range c.WorkerTime() {
			d.hours += used.Hours() * times
		}
	}
	t.ended = func(c *simulate.Cluster) {
		d.changes = len(c.Resizes())
		d.sizes = sizesOf(c.Resizes(), t.load.Duration)
	}
	if d.figures, err = t.at(ctx, t.load.Rate, 0); err != nil {
		return fmt.Errorf("%s: %w", d.name, err)
	}
	o.say(fmt.Sprintf("day: %s: %.1f worker-hours, %.2f%% in time", d.name, d.hours, 100*d.figures.SLOAttainment))
	return nil
}

// halfHours is their number in a day.
const halfHours = 48

// sizesOf is the number of workers of all pools at the end of each half hour.
func sizesOf(resizes []simulate.Resize, day time.Duration) []float64 {
	sizes, now := make([]float64, halfHours), map[string]int{}
	for i := range sizes {
		for len(resizes) > 0 && resizes[0].At <= day*time.Duration(i+1)/halfHours {
			now[resizes[0].Pool] = resizes[0].To
			resizes = resizes[1:]
		}
		for _, n := range now {
			sizes[i] += float64(n)
		}
	}
	return sizes
}

// Shares of a fixed size that prefill: the first is the best at the peak.
var fixedShares = []float64{0.27, 0.2, 0.35}

// Run measures.
func (day) Run(ctx context.Context, o Options) (*Result, error) {
	if o.Small { // a day that is short enough for CI shows only noise
		return &Result{}, nil
	}
	times, sizes := 8.0, []int{18, 20, 22, 24}
	if o.Long {
		times = 1
	}
	desired := &dayRun{name: "desired size", policy: simulate.ScaleDesired}
	runs := []*dayRun{
		desired,
		{name: "processor use, target 70%", policy: simulate.ScaleUtilisation},
		{name: "queue, 2,000 tokens a worker", policy: simulate.ScaleQueue},
		{name: "queue, 500 tokens a worker", policy: simulate.ScaleQueue, target: 500},
	}
	scaled := len(runs)
	for _, n := range sizes {
		runs = append(runs, fixedRun(n, fixedShares[0]))
	}
	if err := each(ctx, len(runs), func(i int) error { return runs[i].measure(ctx, o, times) }); err != nil {
		return nil, err
	}
	enough := func(d *dayRun) bool { return d.figures.Goodput >= desired.figures.Goodput }
	i := slices.IndexFunc(runs[scaled:], enough)
	if i < 0 {
		return nil, fmt.Errorf("%d workers serve less than the desired size: %.2f of %.2f a second", sizes[len(sizes)-1], runs[len(runs)-1].figures.Goodput, desired.figures.Goodput)
	}
	best := runs[scaled+i]
	var fewer []*dayRun // by one, split in several ways
	for _, share := range fixedShares {
		fewer = append(fewer, fixedRun(sizes[i]-1, share))
	}
	if err := each(ctx, len(fewer), func(i int) error { return fewer[i].measure(ctx, o, times) }); err != nil {
		return nil, err
	}
	if less := slices.IndexFunc(fewer, enough); less >= 0 {
		best = fewer[less]
	}
	runs = append(runs[:scaled+i:scaled+i], append(fewer, runs[scaled+i:]...)...)
	ratio := desired.hours / best.hours
	r := &Result{
		Intro: []string{fmt.Sprintf("[%s](scenarios/%s): OPT-13B on A100s, lengths like those of Azure's conversations, from 9.6 requests a second at night to 48 in the afternoon; a first token within 1 s, the others within 100 ms each. The file's %g hours stand for a day. They are compressed into %g minutes of virtual time; a worker's start and the delay before a pool shrinks are shortened in proportion. Worker-hours are of the %[3]g hours, until the last request comes.",
			dayFile, dayFile, dayLasts.Hours(), dayLasts.Minutes()/times)},
		Tables: []Table{dayTable(runs, best)},
		Ratios: []Ratio{{Name: "worker-hours of the desired size over the best fixed size's, at least its goodput", Value: round3(ratio), Noise: 0.06}},
		Notes: []string{
			"The mean of the load is 0.6 of its peak. So pools that follow the load, with as little to spare as the best fixed size has at the peak, cannot use less than 0.6 of its worker-hours.",
			"[Decision 0046](decisions/0046-desired-size.md) has the file's two hours uncompressed, where answers and bursts are shorter beside the day, and says why processor use and queues are no measure: what a queue of so many tokens serves depends on lengths and SLO.",
		},
	}
	r.Pictures = []Picture{{"day", "Workers over the day, by what sets their number", dayChart(runs[:scaled], best).svg()}}
	return r, nil
}

// dayLasts is the length of dayFile.
const dayLasts = 2 * time.Hour

func dayTable(runs []*dayRun, best *dayRun) Table {
	t := Table{
		Title:  "A day",
		Header: []string{"workers, prefill + decode, by", "worker-hours", "of the best fixed size", "in time", "goodput, requests/s", "changes of a size"},
		Note:   fmt.Sprintf("The best fixed size, %s, is the smallest with at least the goodput of the desired size.", strings.TrimSuffix(best.name, ", fixed")),
	}
	for _, d := range runs {
		changes := ""
		if d.policy != "" {
			changes = fmt.Sprint(d.changes)
		}
		t.Rows = append(t.Rows, []string{
			d.name, fmt.Sprintf("%.1f", d.hours), fmt.Sprintf("%.2f", d.hours/best.hours), fmt.Sprintf("%.2f%%", 100*d.figures.SLOAttainment), fmt.Sprintf("%.2f", d.figures.Goodput), changes,
		})
	}
	return t
}

// dayChart draws the number of workers over the day.
func dayChart(scaled []*dayRun, best *dayRun) chart {
	c := chart{title: "A day: workers", xLabel: "hour of the day", yLabel: "workers", line: float64(best.prefill + best.decode)}
	for _, d := range scaled {
		l := curve{name: d.name, y: d.sizes}
		for i := range d.sizes {
			l.x = append(l.x, float64(i+1)*24/halfHours)
		}
		c.curves = append(c.curves, l)
	}
	return c
}
