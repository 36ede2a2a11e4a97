package measure_test

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
)

// queue is a server with known behaviour. Requests arrive at random, wait in one FIFO
// queue for one of several places, and are served.
type queue struct {
	rate    float64
	places  int
	service time.Duration
	seconds float64
	// exponential service times instead of equal ones.
	exponential bool
	// ramp, if set, multiplies the rate linearly from start to end.
	ramp [2]float64
	// frozen is when service pauses, from and to.
	frozen [2]time.Duration
	// burst requests come together at burstAt.
	burst   int
	burstAt time.Duration
	// queueLimit is how many may wait before the server refuses; 0: unlimited.
	queueLimit int
	tokens     int
}

// places holds when each place is free, the earliest first.
type places []time.Duration

func (p places) Len() int           { return len(p) }
func (p places) Less(i, j int) bool { return p[i] < p[j] }
func (p places) Swap(i, j int)      { p[i], p[j] = p[j], p[i] }
func (p *places) Push(any)          {}
func (p *places) Pop() any          { return nil }

func (q queue) run(seed uint64) *record.Run {
	r := rand.New(rand.NewPCG(seed, 11))
	end := time.Duration(q.seconds * float64(time.Second))
	var due []time.Duration
	for at := time.Duration(0); ; {
		rate, fastest := q.rate, q.rate
		if q.ramp != [2]float64{} {
			fastest = q.rate * max(q.ramp[0], q.ramp[1])
			rate = q.rate * (q.ramp[0] + (q.ramp[1]-q.ramp[0])*float64(at)/float64(end))
		}
		at += time.Duration(r.ExpFloat64() / fastest * float64(time.Second))
		if at > end {
			break
		}
		if r.Float64()*fastest <= rate {
			due = append(due, at)
		}
	}
	for range q.burst {
		due = append(due, q.burstAt)
	}
	slices.Sort(due)
	run := &record.Run{Offered: q.rate, To: end}
	free := make(places, q.places)
	tokens := max(q.tokens, 1)
	for i, at := range due {
		one := &record.Record{
			Index: i, Due: at, Dispatched: at, Sent: at, Admitted: at, Outcome: record.Completed,
			PromptTokens: 10, CachedTokens: -1, OutputTokens: tokens,
		}
		run.Records = append(run.Records, one)
		if q.queueLimit > 0 {
			waiting := 0
			for j := i - 1; j >= 0 && j >= i-2*q.queueLimit-q.places; j-- {
				if run.Records[j].End > at {
					waiting++
				}
			}
			if waiting >= q.queueLimit+q.places {
				one.Outcome, one.Code, one.Admitted, one.End, one.OutputTokens = record.Rejected, "RESOURCE_EXHAUSTED", record.Unset, at, 0
				continue
			}
		}
		start := max(at, free[0])
		took := q.service
		if q.exponential {
			took = time.Duration(r.ExpFloat64() * float64(q.service))
		}
		if start < q.frozen[1] && start+took > q.frozen[0] {
			if start >= q.frozen[0] {
				start = q.frozen[1]
			} else {
				took += q.frozen[1] - q.frozen[0]
			}
		}
		one.End = start + took
		free[0] = one.End
		heap.Fix(&free, 0)
		for k := range tokens {
			one.Arrivals = append(one.Arrivals, record.Arrival{At: start + took*time.Duration(k+1)/time.Duration(tokens), Tokens: 1})
		}
		run.Drained = max(run.Drained, one.End)
	}
	ends := make([]time.Duration, len(run.Records))
	for i, one := range run.Records {
		ends[i] = one.End
	}
	slices.Sort(ends)
	came, gone := 0, 0
	for at := time.Duration(0); at <= max(end, run.Drained); at += 250 * time.Millisecond {
		for came < len(due) && due[came] <= at {
			came++
		}
		for gone < len(ends) && ends[gone] <= at {
			gone++
		}
		run.Samples = append(run.Samples, record.Sample{At: at, Due: came, Sent: came, Admitted: came, Ended: gone})
	}
	return run
}
