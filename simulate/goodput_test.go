package simulate_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/simulate"
)

// mix is traffic and what its requests want.
type mix struct {
	name, prompt, output string
	ttft, tpot           time.Duration
	// rate is about the most of which four workers that split the work serve nine in ten in time,
	// requests a second.
	rate float64
	// step is what steps take.
	step latency.Model
	// lasts is how long requests come; 0: 40 seconds.
	lasts time.Duration
}

var stepTime = latency.Model{BaseMs: 2, PerTokenMs: 0.1, PerContextTokenMs: 0.0003}

var mixes = []mix{
	{"1024/16", "1024", "16", time.Second, 40 * time.Millisecond, 18, stepTime, 0},
	{"256/64", "256", "64", 500 * time.Millisecond, 30 * time.Millisecond, 75, stepTime, 0},
	{"32/256", "32", "256", 300 * time.Millisecond, 30 * time.Millisecond, 45, stepTime, 0},
	{"lognormal", "lognormal:500,500", "lognormal:100,80", time.Second, 40 * time.Millisecond, 50, stepTime, 0},
}

// tight is steps that have little time beside their fixed one: workers apart serve twice as many.
var tight = mix{"128/16, tight", "128", "16", 400 * time.Millisecond, 25 * time.Millisecond, 110, latency.Model{BaseMs: 19, PerTokenMs: 0.1, PerContextTokenMs: 0.0006}, 80 * time.Second}

// soon is prompts of which the longest are in time only where nobody decodes.
var soon = mix{
	"200-1500/50-300, soon", "uniform:200-1500", "uniform:50-300", 250 * time.Millisecond, 100 * time.Millisecond, 7,
	latency.Model{BaseMs: 19, PerTokenMs: 0.13, PerContextTokenMs: 0.0006}, 100 * time.Second,
}

// learns is how long routers have to learn what the workers serve, before requests count.
const learns = 20 * time.Second

// records is what came of the requests at so many times the mix's rate.
func (m mix) records(t *testing.T, mode inferencev1.Mode, times float64) []*record.Record {
	t.Helper()
	if testing.Short() {
		t.Skip("long, and of one goroutine")
	}
	c := config(2, 2)
	c.Mode, c.TTFT, c.TPOT = mode, m.ttft, m.tpot
	for _, w := range c.Workers {
		w.Profile, w.MaxSequences = m.step.Profile(), 64
	}
	all := run(t, c, m.rate*times, m.duration(), "--prompt-tokens="+m.prompt, "--output-tokens="+m.output, "--context-tokens=4096", "--seed=5").Records
	return slices.DeleteFunc(all, func(r *record.Record) bool { return r.Due < learns })
}

func (m mix) duration() time.Duration { return cmp.Or(m.lasts, 40*time.Second) }

// goodput is how many requests a second got all that they want.
func (m mix) goodput(t *testing.T, mode inferencev1.Mode, times float64) float64 {
	t.Helper()
	good := 0
	for _, r := range m.records(t, mode, times) {
		if r.Outcome == record.Completed && r.First()-r.Due <= m.ttft && r.Last()-r.First() <= m.tpot*time.Duration(r.OutputTokens-1) {
			good++
		}
	}
	return float64(good) / (m.duration() - learns).Seconds()
}

const (
	auto       = inferencev1.Mode_MODE_AUTO
	aggregated = inferencev1.Mode_MODE_AGGREGATED
)

// Whatever the mix, mode auto serves as many in time as the better of the two others, below
// and above what they hold. Far above, workers that do both lose the least time between steps,
// at a time of a token that auto does not choose: it may serve 5% less there.
func TestAutoIsAsGoodAsEither(t *testing.T) {
	for _, m := range append(slices.Clone(mixes), tight, soon) {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			for times, share := range map[float64]float64{0.8: 0.97, 1.1: 0.97, 2: 0.95} {
				if times == 2 && m == tight { // before the first refusals it uses all workers alike
					share = 0.9
				}
				best := max(m.goodput(t, disaggregated, times), m.goodput(t, aggregated, times))
				if got := m.goodput(t, auto, times); got < share*best {
					t.Errorf("at %.1f times: %.1f a second, and %.1f in the better mode", times, got, best)
				}
			}
		})
	}
}

// What is too much is refused, and the rest is served as before.
func TestOverloadIsRefused(t *testing.T) {
	for _, m := range append(slices.Clone(mixes), soon) {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			modes, least := []inferencev1.Mode{auto, disaggregated}, 0.9
			if m == soon { // the more come, the more that are short; those that are late anyhow keep nobody out
				modes, least = append(modes, aggregated), 1.25
			}
			for _, mode := range modes {
				most := max(m.goodput(t, mode, 1), m.goodput(t, mode, 1.3))
				for _, times := range []float64{2, 3, 10} {
					if got := m.goodput(t, mode, times); got < least*most {
						t.Errorf("%v, %.0f times: %.1f a second, %.1f before", mode, times, got, most)
					}
				}
			}
		})
	}
}

// Who is refused in overload hears of it at once: few are let in, wait, and are refused when it is too late.
func TestRefusalsComeAtOnce(t *testing.T) {
	for _, m := range mixes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			refused, waited := 0, 0
			for _, r := range m.records(t, auto, 2) {
				if r.Outcome == record.Rejected {
					refused++
					if r.End-r.Due > 5*time.Millisecond {
						waited++
					}
				}
			}
			if refused == 0 || float64(waited) > 0.05*float64(refused) {
				t.Errorf("of %d refusals %d came late", refused, waited)
			}
		})
	}
}

// ofTenants gives the requests of a source to as many tenants, in turns.
type ofTenants struct {
	workload.Source
	tenants, next int
}

func (o *ofTenants) Next() (*workload.Request, error) {
	r, err := o.Source.Next()
	if err == nil {
		r.Tenant = fmt.Sprint(o.next % o.tenants)
		o.next++
	}
	return r, err
}

// However much is too much, long requests are not refused so often that the longest quarter gets less than
// half of the mean, whether one tenant sends all or many send one at a time.
func TestLongRequestsAreServedInOverload(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and of one goroutine")
	}
	const lasts = 10 * time.Second
	for name, m := range map[string]mix{
		"wide":   {prompt: "lognormal:500,500", output: "lognormal:100,80", ttft: time.Second, tpot: 40 * time.Millisecond, rate: 50},
		"narrow": {prompt: "lognormal:128,64", output: "lognormal:64,32", ttft: 500 * time.Millisecond, tpot: 30 * time.Millisecond, rate: 156},
	} {
		for _, tenants := range []int{1, 500} {
			for _, times := range []float64{2, 3, 10} {
				t.Run(fmt.Sprintf("%s, %d tenants, %.0f times", name, tenants, times), func(t *testing.T) {
					t.Parallel()
					c := config(2, 2)
					c.TTFT, c.TPOT = m.ttft, m.tpot
					for _, w := range c.Workers {
						w.Profile, w.MaxSequences = stepTime.Profile(), 64
					}
					cluster, err := simulate.New(c)
					if err != nil {
						t.Fatal(err)
					}
					from := source(t, m.rate*times, lasts, "--prompt-tokens="+m.prompt, "--output-tokens="+m.output, "--context-tokens=4096", "--seed=5")
					got, err := cluster.Run(simulate.Load{
						Source: &ofTenants{Source: from, tenants: tenants}, Offered: m.rate * times, Duration: lasts,
						RequestTimeout: time.Minute, DrainTimeout: 30 * time.Second,
					})
					if err != nil {
						t.Fatal(err)
					}
					records := got.Records
					slices.SortStableFunc(records, func(a, b *record.Record) int { return cmp.Compare(a.Asked, b.Asked) })
					completed := func(of []*record.Record) float64 {
						n := 0
						for _, r := range of {
							if r.Outcome == record.Completed {
								n++
							}
						}
						return float64(n) / float64(len(of))
					}
					all, longest := completed(records), completed(records[len(records)*3/4:])
					if all > 0.8 || longest < all/2 {
						t.Errorf("of the longest quarter %.3f are served, and %.3f of all", longest, all)
					}
				})
			}
		}
	}
}

// What a request waits at its router is queue: to decide takes no virtual time.
func TestWaitingAtTheRouterIsQueue(t *testing.T) {
	c := config(1, 1)
	waited := false
	for _, r := range run(t, c, 60, 3*time.Second, "--prompt-tokens=800", "--output-tokens=4", "--seed=5").Records {
		if r.Timings == nil {
			continue
		}
		if r.Timings.GetDecideNs() != 0 {
			t.Fatalf("timings %v", r.Timings)
		}
		waited = waited || r.Timings.GetQueueNs()-r.Timings.GetPrefillQueueNs() > int64(100*time.Millisecond)
	}
	if !waited {
		t.Error("no request waited at its router")
	}
}
