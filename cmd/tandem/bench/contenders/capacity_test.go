package contenders_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/contenders"
	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

// queue serves one request after the other, each for the same time.
type queue struct {
	takes time.Duration
	asked []contenders.Bounds
	dues  [][]time.Duration // of each run, its first requests at a rate of 1
	sent  map[string]int    // prompts
	runs  int
	stop  func(runs int)
	fail  func(runs int) error
}

func (q *queue) Ask(b contenders.Bounds) { q.asked = append(q.asked, b) }
func (q *queue) Close() error            { return nil }

func (q *queue) Describe(context.Context) (client.Description, error) {
	return client.Description{Kind: "queue", VocabularySize: 1000, ContextTokens: 1000}, nil
}

func (q *queue) Do(context.Context, *workload.Request, client.Clock, *record.Record) workload.Answer {
	return workload.Answer{}
}

func (q *queue) Drive(ctx context.Context, o drive.Options) (*record.Run, error) {
	if q.runs++; q.stop != nil {
		q.stop(q.runs)
	}
	if q.fail != nil {
		if err := q.fail(q.runs); err != nil {
			return nil, err
		}
	}
	if q.sent == nil {
		q.sent = map[string]int{}
	}
	run := &record.Run{Offered: o.Offered, Concurrency: o.Concurrency, From: o.Warmup, To: o.Warmup + o.Duration}
	var free time.Duration
	var dues []time.Duration
	for {
		request, err := o.Source.Next()
		if errors.Is(err, io.EOF) || o.Concurrency > 0 && free >= run.To {
			break
		}
		if err != nil {
			return nil, err
		}
		q.sent[fmt.Sprint(request.Prompt.TokenIDs)]++
		if o.Concurrency > 0 {
			request.Due = free
		} else if len(dues) < 5 {
			dues = append(dues, time.Duration(float64(request.Due)*o.Offered).Round(time.Millisecond))
		}
		free = max(free, request.Due) + q.takes
		run.Records = append(run.Records, &record.Record{
			Due: request.Due, Dispatched: request.Due, Admitted: request.Due, End: free, Outcome: record.Completed,
			OutputTokens: 1, Arrivals: []record.Arrival{{At: free, Tokens: 1}},
		})
	}
	q.dues = append(q.dues, dues)
	run.Drained, run.Interrupted = max(free, run.To), ctx.Err() != nil
	return run, nil
}

func searchLoad(t *testing.T) loadtest.Config {
	t.Helper()
	c := load(t)
	c.Duration, c.Warmup, c.SLO, c.Workload.Seed, c.Workload.Arrival = time.Minute, time.Second, "ttft:p90<200ms", 5, workload.Gamma
	c.Workload.Burstiness = 100 // nearly regular: the capacity is then nearly what a queue serves
	return c
}

// The capacity of each is found, with the same arrivals for all in a round and others in the
// next.
func TestCapacities(t *testing.T) {
	queues := []*queue{{takes: 10 * time.Millisecond}, {takes: 20 * time.Millisecond}, {takes: 11 * time.Millisecond}}
	var three []contenders.Contender
	for i, name := range []string{"a", "b", "c"} {
		three = append(three, contenders.Contender{Name: name, Virtual: queues[i]})
	}
	set, err := contenders.Start(t.Context(), three)
	if err != nil {
		t.Fatal(err)
	}
	config := searchLoad(t)
	idle, err := set.Idle(t.Context(), config, &silent{})
	if err != nil || idle.TTFT != 10*time.Millisecond || idle.E2E != idle.TTFT || idle.TPOT != 0 {
		t.Errorf("%+v, %v", idle, err)
	}
	carry := contenders.Bounds{TTFT: 3 * time.Second}
	progress := &silent{}
	got, err := set.Capacities(t.Context(), contenders.CapacityOptions{Load: config, Carry: carry, Start: 7, Rounds: 2}, progress)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Rounds) != 2 || got.Interrupted || len(got.Outcomes) != 3 || len(got.Tries) != len(progress.began) {
		t.Fatalf("%+v", got)
	}
	for round, rates := range got.Rounds {
		for i, rate := range rates {
			serves := float64(time.Second) / float64(queues[i].takes)
			if rate < 0.97*serves || rate > 1.05*serves {
				t.Errorf("round %d: %s has %v, and serves %v", round+1, three[i].Name, rate, serves)
			}
		}
	}
	for i, q := range queues {
		if q.asked[len(q.asked)-1] != carry {
			t.Errorf("%s: requests ask for %v", three[i].Name, q.asked)
		}
		dues := q.dues[len(q.dues)-q.runs:]
		if i == 0 {
			dues = dues[1:] // idle
		}
		first, last := queues[1].dues[0], queues[1].dues[len(queues[1].dues)-1]
		if slices.Equal(first, last) || !slices.Equal(dues[0], first) || !slices.Equal(dues[1], first) || !slices.Equal(dues[len(dues)-1], last) {
			t.Errorf("%s: arrivals %v", three[i].Name, dues)
		}
		for prompt, times := range q.sent {
			if times > 1 {
				t.Fatalf("%s got %s %d times, which a prefix cache has then", three[i].Name, prompt, times)
			}
		}
	}
	for _, try := range got.Tries {
		passes := got.Rounds[try.Round-1][slices.Index([]string{"a", "b", "c"}, try.Contender)] >= try.Rate
		if passes != (try.Attainment >= search.Share) {
			t.Errorf("%+v passes: %v", try, passes)
		}
	}
	if err := set.Stop(); err != nil {
		t.Error(err)
	}
}

// What was whole before an interruption or a failure stays. What fails after the interruption is no news.
func TestCapacitiesEndEarly(t *testing.T) {
	broken := errors.New("a worker is gone")
	for _, test := range []struct {
		name           string
		stopAt, failAt int // in run 1 of the first round, or 12 of the second
		rounds         int
		err            error
	}{
		{"interrupted at once", 1, 0, 0, contenders.ErrInterrupted},
		{"interrupted later", 12, 0, 1, nil},
		{"failed at once", 0, 1, 0, broken},
		{"failed later", 0, 12, 1, broken},
		{"interrupted at once, then failed", 1, 1, 0, contenders.ErrInterrupted},
		{"interrupted later, then failed", 12, 12, 1, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			q := &queue{takes: 10 * time.Millisecond, stop: func(runs int) {
				if runs == test.stopAt {
					cancel()
				}
			}, fail: func(runs int) error {
				if runs == test.failAt {
					return broken
				}
				return nil
			}}
			var got *contenders.Capacities
			err := contenders.Use(ctx, []contenders.Contender{{Name: "a", Virtual: q}}, func(set *contenders.Set) (err error) {
				got, err = set.Capacities(ctx, contenders.CapacityOptions{Load: searchLoad(t), Start: 90, Rounds: 3}, nil)
				return err
			})
			if !errors.Is(err, test.err) {
				t.Errorf("error %v, want %v", err, test.err)
			}
			if test.rounds == 0 && got != nil || test.rounds > 0 && (got == nil || !got.Interrupted || len(got.Rounds) != test.rounds || len(got.Outcomes) != 1) {
				t.Errorf("%+v, want %d rounds", got, test.rounds)
			}
		})
	}
}

// So it does at given rates.
func TestRatesEndEarly(t *testing.T) {
	broken := errors.New("a worker is gone")
	for failAt, steps := range map[int]int{1: 0, 4: 1} { // two contenders: in the first step, and in the second
		runs := 0
		fail := func(int) error {
			if runs++; runs == failAt {
				return broken
			}
			return nil
		}
		two := []contenders.Contender{
			{Name: "a", Virtual: &queue{takes: 10 * time.Millisecond, fail: fail}}, {Name: "b", Virtual: &queue{takes: 10 * time.Millisecond, fail: fail}},
		}
		got, err := contenders.Run(t.Context(), two, contenders.Options{Load: searchLoad(t), Rates: []float64{10, 20}, Rounds: 1}, nil)
		if !errors.Is(err, broken) || (got != nil) != (steps > 0) || got != nil && (len(got.Steps) != steps || len(got.Outcomes) != 2 || !got.Interrupted) {
			t.Errorf("failed in run %d: %+v, %v", failAt, got, err)
		}
	}
}
