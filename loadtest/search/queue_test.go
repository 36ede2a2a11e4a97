package search_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/search"
)

// served runs an M/M/1 queue with a mean service time of 50 ms.
func served(r *rand.Rand, rate, seconds float64) *record.Run {
	const service = 0.05
	moment := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	run := &record.Run{Offered: rate, To: moment(seconds)}
	free := 0.0
	for at := r.ExpFloat64() / rate; at <= seconds; at += r.ExpFloat64() / rate {
		free = max(free, at) + service*r.ExpFloat64()
		run.Records = append(run.Records, &record.Record{
			Due: moment(at), Dispatched: moment(at), Sent: moment(at), Admitted: moment(at), End: moment(free),
			Arrivals: []record.Arrival{{At: moment(free), Tokens: 1}}, OutputTokens: 1, Outcome: record.Completed,
		})
	}
	due, ended := 0, 0
	for s := 0.0; s <= seconds; s += 0.25 {
		for due < len(run.Records) && run.Records[due].Due <= moment(s) {
			due++
		}
		for ended < len(run.Records) && run.Records[ended].End <= moment(s) {
			ended++
		}
		run.Samples = append(run.Samples, record.Sample{At: moment(s), Due: due, Ended: ended})
	}
	return run
}

// The time in an M/M/1 queue is exponential with rate 20 - λ a second. So its 90th
// percentile is 500 ms at λ = 20 - 2·ln 10 = 15.4. The search must find that from random
// runs of five minutes.
func TestFindMaxOfAQueue(t *testing.T) {
	slo, err := measure.ParseSLO("e2e:p90<=500ms")
	if err != nil {
		t.Fatal(err)
	}
	want := 20 - 2*math.Ln10
	const runs = 12
	near, sum := 0, 0.0
	for seed := range uint64(runs) {
		r := rand.New(rand.NewPCG(seed, 9))
		s := search.NewFindMax(2)
		drive(t, s, func(rate float64) *measure.Summary {
			return measure.Summarize(served(r, rate, 300), measure.Options{SLO: slo})
		})
		result := s.Result()
		if result.MaxRate == nil {
			t.Errorf("seed %d: no rate passed", seed)
			continue
		}
		sum += *result.MaxRate / runs
		if math.Abs(*result.MaxRate/want-1) < 0.1 {
			near++
		}
		if result.Breaking != nil && *result.Breaking < want {
			t.Errorf("seed %d: broke at %v of 20", seed, *result.Breaking)
		}
	}
	t.Logf("found %.2f on average, %d of %d within a tenth of %.2f", sum, near, runs, want)
	if near < runs*3/4 || math.Abs(sum/want-1) > 0.05 {
		t.Errorf("found %.2f on average, %d of %d within a tenth of %.2f", sum, near, runs, want)
	}
}
