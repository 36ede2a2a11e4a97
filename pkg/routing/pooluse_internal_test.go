package routing

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// Of the uses that are expected to serve more, the better one is chosen once requests are refused, and the present
// one is kept while another is hardly better. Without refusals requests go where they cost least.
func TestChooseByWhatIsExpected(t *testing.T) {
	now := time.Unix(1e9, 0)
	var c choice
	for i, step := range []struct {
		aggregated, disaggregated float64
		overload, spares          bool
		want                      use
	}{
		{0.5, 0.9, false, false, byCost}, // nothing is refused: byCost is as good as either
		{0.96, 1, true, false, allAggregated},
		{0.955, 1, true, false, allAggregated},
		{0.9, 1, true, false, allDisaggregated},
		{0.99, 1, true, false, allDisaggregated},
		{1, 0.98, true, false, allAggregated},
		{0.2, 0.2, false, false, byCost},
		{1, 0.95, true, true, byCost}, // prefill workers have much time
		{0.8, 1, true, true, allDisaggregated},
	} {
		now = now.Add(time.Minute)
		cost := max(step.aggregated, step.disaggregated)
		if step.spares {
			cost = step.aggregated
		}
		const most = 0.9 // else all are expected to be in time
		c.choose(now, [uses]float64{most * cost, most * step.aggregated, most * step.disaggregated}, situation{overload: step.overload, spares: step.spares, bursts: step.aggregated*aggregatedIsWorth >= step.disaggregated}, 0)
		if c.use != step.want {
			t.Errorf("%d: %+v: use %d", i, step, c.use)
		}
	}
}

// A use that serves less than is expected of it gives way to one that serves more, is tried again only now and then,
// and is found to be the better one when it has become that.
func TestChooseByWhatIsServed(t *testing.T) {
	now, random := time.Unix(1e9, 0), rand.New(rand.NewPCG(1, 2))
	serves := [uses]float64{byCost: 0.5, allAggregated: 0.2, allDisaggregated: 0.7}
	var c choice
	in := func(seconds int) (by [uses]int) {
		for range seconds {
			now = now.Add(time.Second)
			c.choose(now, [uses]float64{0.9, 0.9, 0.8}, situation{overload: true}, 2*time.Second)
			by[c.use]++
			for range 20 {
				// Half of those that are not served are refused, the others late.
				served := random.Float64() < serves[c.use]
				admitted := served || random.IntN(2) == 0
				if counted := c.came(now, admitted); counted != nil && admitted && !served {
					c.late(counted)
				}
			}
		}
		return by
	}
	in(60)
	if by := in(3600); by[allDisaggregated] < 3300 {
		t.Errorf("of an hour, seconds of each use: %v", by)
	}
	serves[allAggregated] = 1
	in(1800)
	if by := in(3600); by[allAggregated] < 3300 {
		t.Errorf("of an hour, once all aggregated are served: %v", by)
	}
}

// What ran before a change of use is not counted for the one that follows.
func TestOutcomesAfterAChange(t *testing.T) {
	now := time.Unix(1e9, 0)
	var c choice
	if c.came(now, true) != nil {
		t.Error("a request is counted before anything is expected")
	}
	c.choose(now, [uses]float64{0.9, 0.9, 0.1}, situation{overload: true}, 5*time.Second)
	if c.use != allAggregated || c.came(now.Add(4*time.Second), false) != nil || c.came(now.Add(5*time.Second), false) == nil {
		t.Errorf("%+v", c)
	}
}

// However long ago a request came that turns out to be late, what is left counted is right.
func TestLateMuchLater(t *testing.T) {
	now := time.Unix(1e9, 0)
	c := choice{expects: [uses]float64{1, 1, 1}}
	var running []*outcome
	for n := range 20_000 {
		running = append(running, c.came(now, true))
		if len(running) > 3000 {
			if n%10 < 3 {
				c.late(running[0])
			}
			running = running[1:]
		}
	}
	for n, of := range running {
		if n%10 < 3 {
			c.late(of)
		}
	}
	if o := c.outcomes[byCost]; math.Abs(o.inTime/o.came-0.7) > 0.01 {
		t.Errorf("%.3f in time, and 0.7 were", o.inTime/o.came)
	}
}

// Where few come all are in time, and where many come as many as are served.
func TestShare(t *testing.T) {
	for _, c := range []struct{ come, serve, least, most float64 }{
		{0, 10, 1, 1}, {5, 10, 0.98, 1}, {10, 10, 0.8, 0.9}, {100, 10, 0.099, 0.1}, {1, 0, 0, 0}, {0, 0, 0, 0},
	} {
		if got := share(c.come, c.serve); !(got >= c.least && got <= c.most) {
			t.Errorf("%v come and %v are served: %v", c.come, c.serve, got)
		}
	}
}

// A use that has nearly all in time is kept, whatever is expected of others.
func TestChooseKeepsWhatServesAll(t *testing.T) {
	now := time.Unix(1e9, 0)
	var c choice
	for n := range 120 {
		now = now.Add(time.Second)
		c.choose(now, [uses]float64{0.8, 0.8, 0.8}, situation{overload: n > 60}, 0)
		for i := range 50 {
			c.came(now, i > 0)
		}
	}
	if c.use != byCost {
		t.Errorf("use %d", c.use)
	}
}

// A request is late if its first token or a later one takes longer than it asked for.
func TestLate(t *testing.T) {
	began := time.Unix(1e9, 0)
	after := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }
	for _, c := range []struct {
		name           string
		of             dispatched
		prompted, ends int
		tokens         int
		want           bool
	}{
		{"in time", dispatched{firstDue: after(100), eachToken: 10 * time.Millisecond}, 100, 290, 20, false},
		{"late first token", dispatched{firstDue: after(100), eachToken: 10 * time.Millisecond}, 101, 290, 20, true},
		{"late tokens", dispatched{firstDue: after(100), eachToken: 10 * time.Millisecond}, 100, 291, 20, true},
		{"one token", dispatched{eachToken: 10 * time.Millisecond}, 100, 500, 1, false},
		{"tokens that may take for ever", dispatched{eachToken: math.MaxInt64}, 100, 500, 100, false},
		{"no objective", dispatched{}, 1000, 9000, 2, false},
	} {
		c.of.promptedAt = after(c.prompted)
		if got := c.of.late(after(c.ends), c.tokens); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
