package evidence

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/pkg/queueing"
)

// queues compares the wait at one worker with the formulas, as utilisation goes to 1.
type queues struct{}

func (queues) Name() string  { return "queues" }
func (queues) Title() string { return "Waiting explodes before a worker is full" }

const (
	// queueStep is what each step of the worker takes, so that an answer of n tokens takes n of them.
	queueStep = 10 * time.Millisecond
	// queueTokens are those of an answer, on average.
	queueTokens = 20
)

// queueScenario is the text of one worker that serves one request at a time, in order. It is empty at
// first, so that a quarter as many requests come before those that count.
func queueScenario(lengths string, rate float64, requests int) string {
	warmup := time.Duration(float64(requests) / 4 / rate * float64(time.Second))
	return fmt.Sprintf(`model: bench-200m
profile: {base-ms: %g, per-token-ms: 0, per-context-token-ms: 0}
pools: {d: {role: decode, count: 1, max-sequences: 1, max-waiting: 100000}}
network: {latency: 1us}
router: {tenant-max-requests: 1000000, %s, hedge-share: 0, policy: round-robin}
traffic: {rate: 1, prompt-tokens: 8, output-tokens: %q, warmup: %v, duration: 1s, min-requests: %d, request-timeout: 3h, drain-timeout: 3h, max-in-flight: 1000000, mode: aggregated}
`, float64(queueStep)/float64(time.Millisecond), refuseNothing, lengths, warmup, requests)
}

// waited is what requests at one worker saw, seconds.
type waited struct {
	utilisation float64
	measured    float64 // the mean wait
	recursion   float64 // that of Lindley, for the same arrivals and lengths
	mg1, mm1    float64 // what the formulas give for the same rate and moments
}

// waitsOf computes all of it from a run in which every answer was complete. The warm-up only begins the recursion.
//
// Lindley's recursion is the exact wait at one server, first come, first served: W' = max(0, W + S −
// T), where T passes until the next request comes (D. Lindley, "The theory of queues with a single
// server", 1952).
func waitsOf(run *record.Run) (w waited, err error) {
	var times, dues []float64 // of the requests that count
	var measured, exact, recursion float64
	for i, r := range run.Records {
		if r.Outcome != record.Completed {
			return w, fmt.Errorf("a request ended %v: %s", r.Outcome, r.Error)
		}
		if i > 0 {
			before := run.Records[i-1]
			exact = max(0, exact+serviceSeconds(before)-(r.Due-before.Due).Seconds())
		}
		if !run.Counts(r) {
			continue
		}
		recursion += exact
		measured += (r.First() - r.Due - queueStep).Seconds()
		times, dues = append(times, serviceSeconds(r)), append(dues, r.Due.Seconds())
	}
	if len(times) < 2 {
		return w, errors.New("there were no requests")
	}
	n := float64(len(times))
	rate := (n - 1) / (dues[len(dues)-1] - dues[0])
	service := queueing.ServiceOf(times)
	mg1, err := queueing.MG1(rate, service)
	if err != nil {
		return w, err
	}
	mm1, err := queueing.MM1(rate, service.Seconds)
	return waited{utilisation: mg1.Utilisation, measured: measured / n, recursion: recursion / n, mg1: mg1.WaitSeconds, mm1: mm1.WaitSeconds}, err
}

func serviceSeconds(r *record.Record) float64 {
	return (time.Duration(r.OutputTokens) * queueStep).Seconds()
}

// queueLoad is a utilisation, and of how many requests a round is.
type queueLoad struct {
	share    float64
	requests int
}

// Run measures.
func (queues) Run(ctx context.Context, o Options) (*Result, error) {
	kinds := []struct{ name, lengths, law string }{
		{"fixed", fmt.Sprint(queueTokens), "M/D/1"},
		{"exponential", fmt.Sprintf("exp:%d", queueTokens), "M/M/1"},
		{"lognormal, twice as variable", fmt.Sprintf("lognormal:%d,%d", queueTokens, 2*queueTokens), "M/G/1"},
	}
	// The fuller a worker, the longer a burst is felt.
	loads, rounds := []queueLoad{{0.3, 1500}, {0.5, 1500}, {0.7, 2000}, {0.8, 3500}, {0.9, 7000}, {0.95, 13000}}, 4
	if o.Small {
		loads, rounds = []queueLoad{{0.5, 2000}, {0.8, 5000}}, 1
	}
	all := make([]waited, len(kinds)*len(loads)*rounds)
	if err := each(ctx, len(all), func(i int) error {
		i = len(all) - 1 - i // those that take longest begin
		kind, load := kinds[i/(len(loads)*rounds)], loads[i/rounds%len(loads)]
		rate := load.share / (queueTokens * queueStep.Seconds())
		t, err := newTrial(o.Profiles, queueScenario(kind.lengths, rate, load.requests))
		if err != nil {
			return err
		}
		if _, err = t.at(ctx, rate, i%rounds); err == nil {
			all[i], err = waitsOf(t.last)
		}
		if err != nil {
			return fmt.Errorf("%s, %.2f: %w", kind.name, load.share, err)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	r := &Result{Intro: []string{
		fmt.Sprintf("One worker that serves one request at a time, with steps of %v: an answer of %d tokens takes %v. Requests come at random. Waits are means, from when a request was due until the worker began with it, of %d rounds of %d to %d requests, the more the fuller the worker. A quarter as many come before and do not count, since the worker is empty at first.",
			queueStep, queueTokens, queueTokens*queueStep, rounds, loads[0].requests, loads[len(loads)-1].requests),
	}}
	table := Table{
		Title:  "Mean wait, seconds",
		Header: []string{"lengths", "utilisation", "measured", "M/G/1", "M/M/1", "measured over M/G/1", "Lindley's recursion"},
		Note:   fmt.Sprintf("±: the standard error of the mean of %d rounds.", rounds),
	}
	picture := chart{title: "Mean wait at one worker, in service times", xLabel: "utilisation", yLabel: "wait / service time"}
	service := queueTokens * queueStep.Seconds()
	var worstOfLaw, worstOfRecursion float64 = 1, 1
	for k, kind := range kinds {
		line, law := curve{name: kind.name}, curve{name: kind.law}
		for s := range loads {
			var w waited
			var measured []float64
			for _, one := range all[(k*len(loads)+s)*rounds:][:rounds] {
				n := float64(rounds)
				w.utilisation += one.utilisation / n
				w.measured += one.measured / n
				measured = append(measured, one.measured)
				w.recursion += one.recursion / n
				w.mg1 += one.mg1 / n
				w.mm1 += one.mm1 / n
			}
			ofLaw, ofRecursion := w.measured/w.mg1, w.measured/w.recursion
			if math.Abs(ofLaw-1) > math.Abs(worstOfLaw-1) {
				worstOfLaw = ofLaw
			}
			if math.Abs(ofRecursion-1) > math.Abs(worstOfRecursion-1) {
				worstOfRecursion = ofRecursion
			}
			standardError := math.Sqrt(stats.Variance(measured)/float64(rounds)) / w.mg1
			table.Rows = append(table.Rows, []string{
				kind.name, fmt.Sprintf("%.3f", w.utilisation), fmt.Sprintf("%.3f", w.measured), fmt.Sprintf("%.3f", w.mg1), fmt.Sprintf("%.3f", w.mm1),
				fmt.Sprintf("%.3f ± %.3f", ofLaw, standardError), fmt.Sprintf("%.3f", w.recursion),
			})
			line.x, line.y = append(line.x, w.utilisation), append(line.y, w.measured/service)
			law.x, law.y = append(law.x, w.utilisation), append(law.y, w.mg1/service)
		}
		picture.curves = append(picture.curves, line, law)
	}
	r.Tables = append(r.Tables, table)
	if !o.Small {
		r.Pictures = append(r.Pictures, Picture{Name: "queues", Alt: "The mean wait rises without bound as utilisation nears 1", SVG: picture.svg()})
	}
	r.Notes = []string{
		"By M/M/1, requests of exponential length wait nine service times at a utilisation of 0.9, and nineteen at 0.95: the last tenth of a worker is paid for with waiting.",
		"Formulas take the rate and the moments that were drawn. What is left between them and the measurement is chance: close to a utilisation of 1, waits of one burst last for thousands of requests, so that rounds differ. Lindley's recursion gives the exact wait for the same arrivals and lengths, and differs from the measurement by what routing and the network take.",
		"Requests wait at the worker here (policy `round-robin`). With `slo` they wait at the router, which gives a worker with a single place the next one when it hears that the place is free, up to 25 ms later.",
		"A worker that batches is no M/G/1 queue. [planning.md](planning.md) says what `tandem plan` takes for it.",
	}
	r.Ratios = []Ratio{
		{Name: "measured wait over Lindley's recursion, furthest from 1", Value: worstOfRecursion, Noise: 0.03},
		{Name: "measured wait over M/G/1, furthest from 1", Value: worstOfLaw, Noise: 0.25},
	}
	return r, nil
}
