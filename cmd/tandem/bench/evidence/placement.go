package evidence

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// placements maps where prefill and decode apart serve more than workers that do both, for one
// objective.
type placements struct{ objective }

// The objectives of the maps.
var (
	tight = objective{"tight", 400 * time.Millisecond, 25 * time.Millisecond}
	loose = objective{"loose", 700 * time.Millisecond, 50 * time.Millisecond}
)

// Name is what --section takes.
func (m placements) Name() string { return mapPrefix + m.name }

// mapPrefix begins the names of maps.
const mapPrefix = "placement-"

// Title is the heading.
func (m placements) Title() string {
	return fmt.Sprintf("Where disaggregation stops paying: %s SLO", m.name)
}

const (
	// mapWorkers is the hardware of each point: that many A100s.
	mapWorkers = 8
	// mapProfile is their step times.
	mapProfile = "a100-opt-13b-tp1.json"
)

// mapSpans are how long a mesh runs before anything counts, and then is measured, at least; and of how many
// requests. Routers that change how all requests use the workers do so in the first seconds, and for as
// long as an answer takes the workers have what was sent before, too.
func (o Options) mapSpans() (warmup, measured time.Duration, requests int) {
	switch {
	case o.Small:
		return 10 * time.Second, 5 * time.Second, 200
	case o.Long:
		return 20 * time.Second, 20 * time.Second, 400
	}
	return 15 * time.Second, 10 * time.Second, 200
}

// mapEffort says it.
func (o Options) mapEffort() string {
	warmup, measured, requests := o.mapSpans()
	return fmt.Sprintf("%v, after %v that do not count, and longer where that is fewer than %d requests, and found within %g%%", measured, warmup, requests, 100*o.mapTolerance())
}

// mapRounds is how many rounds of arrivals a group of points has at least, and at most: it has more until the
// standard error of auto over the better placement is knownWithin at all of its points.
func (o Options) mapRounds() (least, most int) {
	if o.Long {
		return 3, 9
	}
	return 1, 1
}

// knownWithin is that standard error.
const knownWithin = 0.01

// mapTolerance is how exactly the capacity of a point is found. Rounds differ by more than a quick run's.
func (o Options) mapTolerance() float64 {
	if o.Small || o.Long {
		return search.Fine
	}
	return 0.03
}

// objective is bounds at p90.
type objective struct {
	name       string
	ttft, tpot time.Duration
}

// point is one kind of traffic on one network.
type point struct {
	prompt, output int // tokens
	objective
	bandwidth float64 // of each host in each direction, bytes a second
}

func (p point) String() string {
	return fmt.Sprintf("%d/%d, %s, %s", p.prompt, p.output, p.name, gigabits(p.bandwidth))
}

// longest is how long a request may take.
func (p point) longest() time.Duration {
	return p.ttft + time.Duration(p.output)*p.tpot
}

func gigabits(bytesPerSecond float64) string {
	return fmt.Sprintf("%s Gbit/s", report.Digits(bytesPerSecond*8/1e9))
}

// capacities of a point, requests a second.
type capacities struct{ aggregated, disaggregated, auto float64 }

func (c capacities) better() float64 { return max(c.aggregated, c.disaggregated) }

// ofBetter is the capacity of auto over that of the better placement.
func (c capacities) ofBetter() float64 { return c.auto / c.better() }

// ofAggregated is the capacity of auto over that of aggregated serving.
func (c capacities) ofAggregated() float64 { return c.auto / c.aggregated }

// paysOff is the capacity of disaggregated over that of aggregated serving.
func (c capacities) paysOff() float64 { return c.disaggregated / c.aggregated }

// mapped is what a point gave: the means of its rounds.
type mapped struct {
	point
	prefill int // workers, of the split
	capacities
	rounds []capacities
}

// split is how many of n workers prefill: as many as prompts take of the time of a prompt and an
// answer, if decode workers run as many sequences as the objective of a token allows. near is about
// how many requests a second all of them serve then.
func (p point) split(n int, profile *latency.Profile) (prefill int, near float64) {
	var one latency.StepWork
	one.Add(0, p.prompt, true)
	prompt := profile.Predict(one).Seconds()
	step := func(sequences int) time.Duration {
		var w latency.StepWork
		for range sequences {
			w.Add(p.prompt+p.output/2, 1, true)
		}
		return profile.Predict(w)
	}
	batch := 1
	const most, room = 128, 0.9 // sequences; of the objective
	for batch < most && (batch+1)*(p.prompt+p.output) <= opt13B.tokens[1] && step(batch+1).Seconds() < room*p.tpot.Seconds() {
		batch++
	}
	answer := float64(p.output) * step(batch).Seconds() / float64(batch)
	prefill = int(math.Round(float64(n) * prompt / (prompt + answer)))
	return min(max(prefill, 1), n-1), float64(n) / (prompt + answer)
}

// scenario is the text of one, as 'tandem simulate' reads it.
func (p point) scenario(o Options, prefill int, mode string) string {
	warmup, measured, requests := o.mapSpans()
	m := opt13B
	text := m.text() + "block-tokens: 16\n"
	text += fmt.Sprintf("profile: {file: %q, model: facebook/%s}\n", o.profile(mapProfile), m.name)
	text += fmt.Sprintf("network: {latency: 20us, bandwidth: %.0fMB/s}\nrouter: {tenant-max-requests: 1000000}\npools:\n", p.bandwidth/1e6)
	worker := fmt.Sprintf("kv-memory: %d, max-batch-tokens: 2048, max-sequences: 128, transfer-credit-bytes: %d", m.kvBytes(1), 64<<20)
	if prefill > 0 {
		text += fmt.Sprintf("  prefill: {role: prefill, count: %d, %s}\n", prefill, worker)
	}
	text += fmt.Sprintf("  decode: {role: decode, count: %d, %s}\n", mapWorkers-prefill, worker)
	return text + fmt.Sprintf("traffic:\n  rate: 1\n  mode: %s\n  prompt-tokens: %d\n  output-tokens: %d\n  warmup: %v\n  duration: %v\n  min-requests: %d\n  slo: \"ttft:p90<%v,tpot:p90<%v\"\n  send-slo: true\n",
		mode, p.prompt, p.output, max(p.longest(), warmup), max(p.longest()*3/2, measured), requests, p.ttft, p.tpot)
}

// searchFor finds the capacity of a placement at a point, from a rate near it; factor says how near.
type searchFor func(ctx context.Context, o Options, p point, prefill int, mode string, near, factor float64, round int) (float64, error)

// simulated is the searchFor of simulated workers.
func simulated(ctx context.Context, o Options, p point, prefill int, mode string, near, factor float64, round int) (float64, error) {
	t, err := newTrial(o.Profiles, p.scenario(o, prefill, mode))
	if err != nil {
		return 0, err
	}
	const least = 50 // times less than near is none
	s := search.NewCapacity(near, factor, o.mapTolerance())
	for {
		rate, more := s.Next()
		if !more || rate < near/least {
			break
		}
		passed, err := t.passes(ctx, rate, round)
		if err != nil {
			return 0, fmt.Errorf("%v, %s: %w", p, mode, err)
		}
		s.Done(search.Step{Rate: rate, Summary: attained(passed)})
	}
	if found := s.Result().MaxRate; found != nil {
		return *found, nil
	}
	return 0, nil
}

// attained is what a search for a capacity reads of a run.
func attained(passed bool) *measure.Summary {
	s := &measure.Summary{Requests: 1}
	if passed {
		s.SLOAttainment = 1
	}
	return s
}

// measurePoints measures points that differ in bandwidth only. Aggregated serving sends no KV, so that one
// measurement holds for all of them.
func measurePoints(ctx context.Context, o Options, points []point, profile *latency.Profile, round int, capacity searchFor) ([]capacities, error) {
	const unknown, known = 1.5, 1.1 // factors
	var all []capacities
	for i, p := range points {
		var c capacities
		prefill, near := p.split(mapWorkers, profile)
		var err error
		start, factor := 0.7*near, unknown
		if i == 0 {
			c.aggregated, err = capacity(ctx, o, p, 0, "aggregated", start, unknown, round)
		} else {
			c.aggregated = all[i-1].aggregated
			start, factor = cmp.Or(all[i-1].disaggregated, start), known
		}
		if err == nil {
			c.disaggregated, err = capacity(ctx, o, p, prefill, "disaggregated", start, factor, round)
		}
		if err == nil {
			c.auto, err = capacity(ctx, o, p, prefill, "auto", cmp.Or(c.better(), start), known, round)
		}
		if err != nil {
			return nil, err
		}
		o.say(fmt.Sprintf("placement: %v: %d + %d workers, round %d: aggregated %s, disaggregated %s, auto %s", p, prefill, mapWorkers-prefill, round+1, rate(c.aggregated), rate(c.disaggregated), rate(c.auto)))
		all = append(all, c)
	}
	return all, nil
}

// Run measures.
func (m placements) Run(ctx context.Context, o Options) (*Result, error) {
	prompts, outputs := []int{256, 768, 1536}, []int{16, 64, 128}
	bandwidths := []float64{50e9, 3.125e9}
	switch {
	case o.Small:
		prompts, outputs, bandwidths = prompts[:2], outputs[:1], bandwidths[:1]
	case !o.Long:
		prompts = []int{prompts[0], prompts[2]}
	}
	profile, err := latency.ReadProfileFile(o.profile(mapProfile))
	if err != nil {
		return nil, err
	}
	var groups [][]point // by bandwidth
	for _, prompt := range prompts {
		for _, output := range slices.Backward(outputs) { // those that take longest begin
			var group []point
			for _, b := range bandwidths {
				group = append(group, point{prompt, output, m.objective, b})
			}
			groups = append(groups, group)
		}
	}
	all, err := measureGroups(ctx, o, groups, profile, simulated)
	if err != nil {
		return nil, err
	}
	return mapResult(all, o, m.objective, prompts, outputs, bandwidths), nil
}

// measureGroups measures the points of each group in as many rounds as they need.
func measureGroups(ctx context.Context, o Options, groups [][]point, profile *latency.Profile, capacity searchFor) ([]mapped, error) {
	least, most := o.mapRounds()
	found := make([][][]capacities, len(groups)) // of each round the points
	type run struct{ group, round int }
	for {
		var runs []run
		for g, rounds := range found {
			if n := len(rounds); n < least || n < most && !enoughRounds(rounds) {
				found[g] = append(rounds, make([][]capacities, min(least, most-n))...)
				for i := n; i < len(found[g]); i++ {
					runs = append(runs, run{g, i})
				}
			}
		}
		if len(runs) == 0 {
			break
		}
		if err := each(ctx, len(runs), func(i int) (err error) {
			r := runs[i]
			found[r.group][r.round], err = measurePoints(ctx, o, groups[r.group], profile, r.round, capacity)
			return err
		}); err != nil {
			return nil, err
		}
	}
	var all []mapped
	for g, group := range groups {
		for i, p := range group {
			m := mapped{point: p}
			m.prefill, _ = p.split(mapWorkers, profile)
			rounds := float64(len(found[g]))
			for _, round := range found[g] {
				m.rounds = append(m.rounds, round[i])
				m.aggregated += round[i].aggregated / rounds
				m.disaggregated += round[i].disaggregated / rounds
				m.auto += round[i].auto / rounds
			}
			all = append(all, m)
		}
	}
	return all, nil
}

// enoughRounds reports whether enough rounds of a group were measured.
func enoughRounds(rounds [][]capacities) bool {
	for i := range rounds[0] {
		var values []float64
		for _, round := range rounds {
			values = append(values, round[i].ofBetter())
		}
		if math.Sqrt(stats.Variance(values)/float64(len(values))) > knownWithin {
			return false
		}
	}
	return true
}

// spread is by how much a figure of a point differs between its rounds, over all points: the root mean
// square of the relative standard deviation, and the greatest difference over the mean. Points at which it is
// 0 or undefined in a round are left out. known is false, and both are 0, without two rounds.
func spread(all []mapped, figure func(capacities) float64) (deviation, greatest float64, known bool) {
	variances, n := 0.0, 0
	for _, m := range all {
		var values []float64
		for _, c := range m.rounds {
			if v := figure(c); v > 0 && !math.IsInf(v, 0) {
				values = append(values, v)
			}
		}
		if len(values) < len(m.rounds) || len(values) < 2 {
			continue
		}
		of := stats.Mean(values)
		variances, n = variances+stats.Variance(values)/(of*of), n+1
		greatest = max(greatest, (slices.Max(values)-slices.Min(values))/of)
	}
	if n == 0 {
		return 0, 0, false
	}
	return math.Sqrt(variances / float64(n)), greatest, true
}
