package modes

import (
	"cmp"
	"slices"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/contenders"
	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/loadtest/stats"
)

// Result is what was measured. Its JSON is public.
type Result struct {
	Workers int     `json:"workers"`
	Rounds  int     `json:"rounds"`
	Mixes   []Mixed `json:"mixes"`
	// Rates is the result at given rates, of which there is one mix; nil after a search.
	Rates *contenders.Result `json:"-"`
	// Interrupted: it ended early. Mixes are missing, or the last has fewer rounds.
	Interrupted bool `json:"interrupted,omitempty"`
}

// Mixed is what a mix gave.
type Mixed struct {
	Name          string   `json:"name"`
	SLO           string   `json:"slo"`
	Aggregated    Capacity `json:"aggregated"`
	Disaggregated Capacity `json:"disaggregated"`
	Auto          Capacity `json:"auto"`
	// Better names the one of aggregated and disaggregated with the higher median; AutoOfBetter is the
	// capacity of auto over that one's in the same round, the median of the rounds in which that one has
	// any. Nil: its median is 0.
	Better         string      `json:"better"`
	AutoOfBetter   *float64    `json:"auto_of_better"`
	AutoOfBetterCI *[2]float64 `json:"auto_of_better_ci"`
	// Confidence is the level of the capacities' intervals. That of AutoOfBetterCI is lower if it is of
	// fewer rounds.
	Confidence float64 `json:"confidence"`
	// Tries are the steps of the search, in order.
	Tries []contenders.Try `json:"tries,omitempty"`

	outcomes []*loadtest.Outcome
}

// Capacity is the highest rate at which search.Share of the requests met the SLO.
type Capacity struct {
	// RPS is the median of rounds, nil if that is 0, and CI its interval.
	RPS *float64    `json:"capacity_rps"`
	CI  *[2]float64 `json:"ci"`
	// Rounds are what each found; 0: no rate.
	Rounds []float64 `json:"rounds"`
	// Client says that the client's side limited the steps above it; empty: it did not.
	Client string `json:"client_limit,omitempty"`
}

// searched is the result of a search.
func searched(name, slo string, found *contenders.Capacities) Mixed {
	m := mixed(name, slo, found.Rounds)
	m.Tries, m.outcomes = found.Tries, found.Outcomes
	for _, c := range m.contenders() {
		if c.RPS == nil {
			continue
		}
		for _, try := range found.Tries {
			if try.Contender == c.name && try.Client != "" && try.Attainment < search.Share && try.Rate <= *c.RPS*nearby {
				c.Client = try.Client
			}
		}
	}
	return m
}

// nearby is how far above a capacity, relatively, a step may have set its upper end.
const nearby = 1.05

// atRates takes for a capacity the highest of given rates at which, as at all below, Share of
// the requests met the SLO.
func atRates(name, slo string, r *contenders.Result) Mixed {
	rates := r.Rates()
	var rounds [][]float64
	for begin := 0; begin+len(rates) <= len(r.Steps); begin += len(rates) {
		steps := slices.Clone(r.Steps[begin : begin+len(rates)])
		slices.SortFunc(steps, func(a, b contenders.Step) int { return cmp.Compare(a.Rate, b.Rate) })
		highest := make([]float64, len(r.Outcomes))
		for i := range highest {
			for _, step := range steps {
				if step.Figures[i].SLOAttainment < search.Share {
					break
				}
				highest[i] = step.Rate
			}
		}
		rounds = append(rounds, highest)
	}
	m := mixed(name, slo, rounds)
	m.outcomes = r.Outcomes
	return m
}

// mixed has the capacities of rounds, whose lists are by contender; 0: none.
func mixed(name, slo string, rounds [][]float64) Mixed {
	m := Mixed{Name: name, SLO: slo, Better: Aggregated}
	for i, c := range m.contenders() {
		c.Rounds = []float64{}
		for _, found := range rounds {
			c.Rounds = append(c.Rounds, found[i])
		}
		if c.RPS, c.CI, m.Confidence = median(c.Rounds); c.RPS != nil && *c.RPS == 0 {
			c.RPS, c.CI = nil, nil
		}
	}
	better := 0
	if a, d := m.Aggregated.RPS, m.Disaggregated.RPS; d != nil && (a == nil || *d > *a) {
		better, m.Better = 1, Disaggregated
	}
	var shares []float64
	for _, found := range rounds {
		if b := found[better]; b > 0 && m.contenders()[better].RPS != nil {
			shares = append(shares, found[2]/b)
		}
	}
	m.AutoOfBetter, m.AutoOfBetterCI, _ = median(shares)
	return m
}

// median of values and its interval; nil of nothing.
func median(values []float64) (*float64, *[2]float64, float64) {
	if len(values) == 0 {
		return nil, nil, 0
	}
	low, high, confidence := stats.MedianInterval(values)
	return new(stats.Median(values)), &[2]float64{low, high}, confidence
}

// contender is a capacity with its name.
type contender struct {
	name string
	*Capacity
}

// contenders are the three capacities, in order.
func (m *Mixed) contenders() []contender {
	return []contender{{Aggregated, &m.Aggregated}, {Disaggregated, &m.Disaggregated}, {Auto, &m.Auto}}
}
