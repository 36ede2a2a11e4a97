package drive_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/loadtest/fakeserver"
	"github.com/tandem-serving/tandem/loadtest/finetimer"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

var steady = fakeserver.Shape{TTFT: fakeserver.Delay{Mean: 200 * ms}, ITL: fakeserver.Delay{Mean: 100 * ms}}

// Injected latencies are reported to the nanosecond, since nothing else takes virtual
// time.
func TestReportsWhatWasInjected(t *testing.T) {
	shape := steady
	shape.TTFT.Jitter, shape.ITL.Jitter, shape.Seed = 50*ms, 20*ms, 7
	onVirtualTime(t, shape, drive.Options{
		Source: &source{every: 37 * ms, tokens: 5}, Offered: 27, Warmup: time.Second, Duration: 4 * time.Second, DrainTimeout: time.Minute,
	}, func(t *testing.T, run *record.Run) {
		if want := 136; len(run.Records) != want { // 5 s / 37 ms
			t.Fatalf("%d requests, want %d", len(run.Records), want)
		}
		for i, r := range run.Records {
			if r.Index != i || r.Outcome != record.Completed || r.Due != time.Duration(i)*37*ms {
				t.Fatalf("%+v", r)
			}
			if r.Dispatched != r.Due || r.Sent != r.Due || r.Admitted != r.Due {
				t.Fatalf("due %s, dispatched %s, sent %s, admitted %s", r.Due, r.Dispatched, r.Sent, r.Admitted)
			}
			schedule := shape.Request(uint64(i), r.Due)
			for left, k := 5, 0; left > 0; k++ {
				at, n := schedule.Next(left)
				if r.Arrivals[k].At != at || int(r.Arrivals[k].Tokens) != n {
					t.Fatalf("request %d, message %d: %+v, want %d at %s", i, k, r.Arrivals[k], n, at)
				}
				left -= n
			}
			if r.End != r.Last() || r.PromptTokens != 3 || r.OutputTokens != 5 || r.FinishReason != "length" || r.ID == "" {
				t.Fatalf("%+v", r)
			}
			if got := time.Duration(r.Timings.GetTtftNs()); got != r.First()-r.Due || r.Timings.GetTotalNs() != int64(r.End-r.Due) {
				t.Fatalf("the server says TTFT %s, the client %s", got, r.First()-r.Due)
			}
		}
		if run.From != time.Second || run.To != 5*time.Second || run.Interrupted || run.Client.Bottleneck != "" {
			t.Errorf("from %s to %s, interrupted %t, bottleneck %q", run.From, run.To, run.Interrupted, run.Client.Bottleneck)
		}
		first, last := run.Samples[0], run.Samples[len(run.Samples)-1]
		if first.At != 0 || first.Due != 1 || last.Due != 136 || last.Ended != 136 || last.Tokens != 136*5 || last.Failed != 0 {
			t.Errorf("samples from %+v to %+v", first, last)
		}
		if n := len(run.Samples); n < 20 || n > 24 {
			t.Errorf("%d samples of a run of %s", n, run.Drained)
		}
	})
}

// In open loop, each request due in a two-second freeze waits for the rest of it, so the
// p99 is the freeze. A closed loop would have one sample of it.
func TestAFreezeIsEveryRequestThatWasDue(t *testing.T) {
	shape := fakeserver.Shape{
		TTFT: fakeserver.Delay{Mean: 20 * ms}, ITL: fakeserver.Delay{Mean: 5 * ms},
		Freezes: []fakeserver.Freeze{{At: 4 * time.Second, For: 2 * time.Second}},
	}
	freeze := shape.Freezes[0]
	ttfts := func(run *record.Run) (all []time.Duration, slow int) {
		for _, r := range run.Records {
			if r.Outcome != record.Completed {
				t.Fatalf("%+v", r)
			}
			ttft := r.First() - r.Due
			all = append(all, ttft)
			if ttft > 100*ms {
				slow++
			}
		}
		slices.Sort(all)
		return all, slow
	}
	onVirtualTime(t, shape, drive.Options{
		Source: &source{every: 10 * ms, tokens: 3}, Offered: 100, Duration: 10 * time.Second, DrainTimeout: time.Minute,
	}, func(t *testing.T, run *record.Run) {
		waited := 0
		for _, r := range run.Records {
			if r.Due < freeze.At || r.Due >= freeze.At+freeze.For {
				continue
			}
			waited++
			left := freeze.At + freeze.For - r.Due
			if got := r.First() - r.Due; got != left+shape.TTFT.Mean {
				t.Fatalf("due %s: TTFT %s, want the %s that were left of the freeze and %s", r.Due, got, left, shape.TTFT.Mean)
			}
		}
		all, slow := ttfts(run)
		if waited != 200 || slow < 190 {
			t.Errorf("%d requests were due in the freeze and %d were slow", waited, slow)
		}
		if p99 := all[len(all)*99/100]; p99 < 1900*ms {
			t.Errorf("p99 is %s: a fifth of the requests waited up to %s", p99, freeze.For)
		}
	})
	// A closed loop of one stops with the server.
	onVirtualTime(t, shape, drive.Options{
		Source: &source{tokens: 3}, Concurrency: 1, Duration: 10 * time.Second, DrainTimeout: time.Minute,
	}, func(t *testing.T, run *record.Run) {
		all, slow := ttfts(run)
		if slow > 1 || all[len(all)*99/100] > 100*ms {
			t.Errorf("%d of %d requests were slow, p99 %s", slow, len(all), all[len(all)*99/100])
		}
	})
}

func TestClosedLoop(t *testing.T) {
	onVirtualTime(t, steady, drive.Options{
		Source: &source{tokens: 4}, Concurrency: 3, Duration: 5 * time.Second, DrainTimeout: time.Minute,
	}, func(t *testing.T, run *record.Run) {
		// 200 ms and three times 100 ms each: ten in sequence at three places.
		if len(run.Records) != 30 || run.Client.InFlightMax != 3 || run.Concurrency != 3 || run.To != 5*time.Second {
			t.Errorf("%d requests, %d in flight, to %s", len(run.Records), run.Client.InFlightMax, run.To)
		}
		for i, r := range run.Records {
			if want := time.Duration(i/3) * 500 * ms; r.Due != want || r.Dispatched != want {
				t.Errorf("request %d due %s, dispatched %s, want %s", i, r.Due, r.Dispatched, want)
			}
		}
	})
}

// With as many places as the limit, none is dropped: a free place is also free under the
// limit.
func TestClosedLoopAtTheLimit(t *testing.T) {
	onVirtualTime(t, steady, drive.Options{
		Source: &source{tokens: 1}, Concurrency: 16, InFlightLimit: 16, Duration: 2 * time.Minute, DrainTimeout: time.Minute,
	}, func(t *testing.T, run *record.Run) {
		for _, r := range run.Records {
			if r.Outcome != record.Completed {
				t.Fatalf("request %d of %d, due %s: %s, %s", r.Index, len(run.Records), r.Due, r.Outcome, r.Error)
			}
		}
	})
}

func TestConversations(t *testing.T) {
	for name, concurrency := range map[string]int{"open": 0, "closed": 2} {
		t.Run(name, func(t *testing.T) {
			answered := make(chan workload.Answer, 10)
			var turn func(session, turn int) func(workload.Answer) (*workload.Request, time.Duration)
			turn = func(session, n int) func(workload.Answer) (*workload.Request, time.Duration) {
				return func(answer workload.Answer) (*workload.Request, time.Duration) {
					answered <- answer
					if n == 3 {
						return nil, 0
					}
					return &workload.Request{
						Session: session, Turn: n, MaxTokens: 2, Prompt: workload.Prompt{TokenIDs: answer.TokenIDs}, Then: turn(session, n+1),
					}, time.Second
				}
			}
			s := &source{every: 100 * ms, count: 2, tokens: 2, then: turn(0, 1)}
			onVirtualTime(t, steady, drive.Options{Source: s, Concurrency: concurrency, DrainTimeout: time.Minute}, func(t *testing.T, run *record.Run) {
				if len(run.Records) != 6 || len(answered) != 6 {
					t.Fatalf("%d requests, %d answers", len(run.Records), len(answered))
				}
				if a := <-answered; !slices.Equal(a.TokenIDs, []uint32{0, 1}) || a.Text != " a a" {
					t.Errorf("answer %+v", a)
				}
				// A turn takes 300 ms, then its user thinks for a second.
				for i, r := range run.Records {
					if want := run.Records[i%2].Due + time.Duration(r.Turn)*1300*ms; r.Turn != i/2 || r.Due != want || r.Dispatched != want {
						t.Errorf("record %d: turn %d due %s, dispatched %s, want %s", i, r.Turn, r.Due, r.Dispatched, want)
					}
				}
			})
		})
	}
}

// Requests over the limit are never sent, and the run names the client as the bottleneck.
func TestLimitInFlight(t *testing.T) {
	onVirtualTime(t, steady, drive.Options{
		Source: &source{every: 100 * ms, tokens: 9}, Duration: 3 * time.Second, DrainTimeout: time.Minute, InFlightLimit: 4,
	}, func(t *testing.T, run *record.Run) {
		unsent := 0
		for _, r := range run.Records {
			switch r.Outcome {
			case record.Unsent:
				unsent++
				if r.Dispatched != record.Unset || r.Sent != record.Unset || !strings.Contains(r.Error, "limit of 4 requests in flight was reached") {
					t.Fatalf("%+v", r)
				}
			case record.Completed:
				if r.Dispatched != r.Due {
					t.Fatalf("due %s, dispatched %s", r.Due, r.Dispatched)
				}
			default:
				t.Fatalf("%+v", r)
			}
		}
		// A request takes a second: 4 of 10 are sent.
		if len(run.Records) != 30 || unsent < 16 || unsent > 18 || run.Client.InFlightMax != 4 {
			t.Errorf("%d of %d unsent, %d in flight", unsent, len(run.Records), run.Client.InFlightMax)
		}
		if !strings.Contains(run.Client.Bottleneck, "were not sent, because 4 were already in flight") {
			t.Errorf("bottleneck %q", run.Client.Bottleneck)
		}
	})
}

func TestOutcomes(t *testing.T) {
	cases := []struct {
		name    string
		shape   fakeserver.Shape
		options drive.Options
		want    record.Outcome
		code    string
		end     time.Duration // after due
	}{
		{"refused", fakeserver.Shape{RejectShare: 1}, drive.Options{DrainTimeout: time.Minute}, record.Rejected, "RESOURCE_EXHAUSTED", 0},
		{"breaks off", fakeserver.Shape{TTFT: steady.TTFT, FailShare: 1}, drive.Options{DrainTimeout: time.Minute}, record.Failed, "INTERNAL", 200 * ms},
		{"too slow", steady, drive.Options{RequestTimeout: 450 * ms, DrainTimeout: time.Minute}, record.TimedOut, "DEADLINE_EXCEEDED", 450 * ms},
		{"still runs at the end", fakeserver.Shape{TTFT: fakeserver.Delay{Mean: time.Hour}}, drive.Options{DrainTimeout: time.Second}, record.Cancelled, "CANCELLED", -1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.options.Source = &source{every: 100 * ms, count: 5, tokens: 10}
			onVirtualTime(t, c.shape, c.options, func(t *testing.T, run *record.Run) {
				if len(run.Records) != 5 {
					t.Fatalf("%d requests", len(run.Records))
				}
				for _, r := range run.Records {
					if r.Outcome != c.want || r.Code != c.code || r.Error == "" || (c.end >= 0 && r.End-r.Due != c.end) {
						t.Errorf("%s %s %q after %s", r.Outcome, r.Code, r.Error, r.End-r.Due)
					}
				}
				failures := 5
				if c.want == record.Cancelled {
					failures = 0
				}
				if last := run.Samples[len(run.Samples)-1]; last.Failed != failures || last.Ended != 5 {
					t.Errorf("last sample %+v", last)
				}
			})
		})
	}
}

// The window has its full length, however few requests there were; for a source that ends
// by itself, it ends with the last request.
func TestWindow(t *testing.T) {
	for _, c := range []struct {
		name    string
		count   int
		options drive.Options
		stop    time.Duration
		to      time.Duration
	}{
		{"more to come", 0, drive.Options{Warmup: time.Second, Duration: 2 * time.Second}, 0, 3 * time.Second},
		{"nothing more is due", 3, drive.Options{Warmup: time.Second, Duration: 20 * time.Second, Lasts: true}, 0, 21 * time.Second},
		{"a trace", 3, drive.Options{Duration: 20 * time.Second}, 0, 1400 * ms},
		{"a trace without a duration", 3, drive.Options{Lasts: true}, 0, 1400 * ms},
		{"a trace within the warm-up", 3, drive.Options{Warmup: 5 * time.Second}, 0, 5 * time.Second},
		{"interrupted", 0, drive.Options{Warmup: time.Second, Duration: time.Hour}, 5100 * ms, 5100 * ms},
		{"interrupted while nothing is due", 3, drive.Options{Duration: time.Hour, Lasts: true}, 5100 * ms, 5100 * ms},
		{"interrupted during the warm-up", 0, drive.Options{Warmup: 3 * time.Second, Duration: time.Hour}, 1500 * ms, 3 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.stop > 0 {
					stop := time.AfterFunc(c.stop, cancel)
					defer stop.Stop()
				}
				c.options.Client, c.options.Timer, c.options.DrainTimeout = rig(t, steady), finetimer.Portable(), time.Minute
				c.options.Source = &source{every: 700 * ms, count: c.count, tokens: 1}
				run, err := drive.Run(ctx, c.options)
				if err != nil {
					t.Fatal(err)
				}
				if run.From != c.options.Warmup || run.To != c.to || run.Interrupted != (c.stop > 0) {
					t.Errorf("from %s to %s, interrupted %t, want to %s", run.From, run.To, run.Interrupted, c.to)
				}
				s := measure.Summarize(run, measure.Options{})
				due := 0
				for _, r := range run.Records {
					if r.Due >= c.options.Warmup {
						due++
					}
				}
				if s.Requests != due || run.From == run.To && (due != 0 || s.OfferedRPS != 0) {
					t.Errorf("%d requests at %v/s in the window, want %d", s.Requests, s.OfferedRPS, due)
				}
				if wanted := "interrupted during the warm-up of 3s"; run.Interrupted && run.From == run.To && s.Reason != wanted {
					t.Errorf("%q, want %q", s.Reason, wanted)
				}
			})
		})
	}
}

// Ctrl-C keeps what was measured.
func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2050*ms)
		defer cancel()
		run, err := drive.Run(ctx, drive.Options{
			Client: rig(t, steady), Timer: finetimer.Portable(),
			Source: &source{every: 100 * ms, tokens: 20}, Duration: time.Hour, DrainTimeout: time.Hour,
		})
		if err != nil {
			t.Fatal(err)
		}
		outcomes := map[record.Outcome]int{}
		for _, r := range run.Records {
			outcomes[r.Outcome]++
		}
		// 2.1 s each: all sent within the last second before the drain complete.
		if !run.Interrupted || len(run.Records) != 21 || outcomes[record.Completed] != 10 || outcomes[record.Cancelled] != 11 {
			t.Errorf("interrupted %t, %d requests, %v", run.Interrupted, len(run.Records), outcomes)
		}
		if run.Drained != 3050*ms {
			t.Errorf("drained at %s", run.Drained)
		}
	})
}

func TestTheSourcesErrorEndsTheRun(t *testing.T) {
	broken := errors.New("line 7 is no request")
	synctest.Test(t, func(t *testing.T) {
		run, err := drive.Run(t.Context(), drive.Options{
			Client: rig(t, steady), Timer: finetimer.Portable(),
			Source: &source{every: 100 * ms, count: 3, tokens: 1, err: broken}, Duration: time.Hour, DrainTimeout: time.Minute, Lasts: true,
		})
		if !errors.Is(err, broken) || run == nil || len(run.Records) != 3 || run.Drained > time.Minute {
			t.Errorf("%v, %+v", err, run)
		}
	})
}

// A run whose records cannot fit is refused if known in advance, and otherwise stops.
func TestMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := drive.Options{
			Client: rig(t, fakeserver.Shape{}), Source: &source{every: ms, tokens: 1}, Offered: 1e6, Duration: time.Hour, DrainTimeout: time.Minute,
			Timer: finetimer.Portable(),
		}
		if _, err := drive.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "lower the rate") {
			t.Errorf("%v", err)
		}
		o.Offered, o.MemoryLimit = 0, 1<<20
		run, err := drive.Run(t.Context(), o)
		if err != nil || len(run.Records) < 500 || len(run.Records) > 2000 || !strings.Contains(run.Client.Bottleneck, "memory limit of 1 MiB") {
			t.Errorf("%v, %d records, %q", err, len(run.Records), run.Client.Bottleneck)
		}
	})
}

// slow makes one request per millisecond where ten are due.
type slow struct{ source }

func (s *slow) Next() (*workload.Request, error) {
	if s.given >= 600 { // those before were made ahead of the run
		time.Sleep(ms)
	}
	return s.source.Next()
}

func TestASourceThatCannotKeepUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run, err := drive.Run(t.Context(), drive.Options{
			Client: rig(t, fakeserver.Shape{}), Timer: finetimer.Portable(), Offered: 10_000,
			Source: &slow{source{every: 100 * time.Microsecond, tokens: 1}}, Duration: 2 * time.Second, DrainTimeout: time.Minute,
			Busy: func() (float64, bool) { return 0, false }, // by the machine's clock, not this one's
		})
		if err != nil || !strings.Contains(run.Client.Bottleneck, "cannot make prompts that fast") {
			t.Errorf("%v, %q", err, run.Client.Bottleneck)
		}
	})
}

func TestOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fine := drive.Options{Client: rig(t, steady), Source: &source{}}
		cases := []struct {
			change func(*drive.Options)
			want   string
		}{
			{func(o *drive.Options) { o.Source = nil }, "a source"},
			{func(o *drive.Options) { o.Concurrency = -1 }, "must not be negative"},
			{func(o *drive.Options) { o.Concurrency = 1 << 20 }, "raise the limit"},
			{func(o *drive.Options) { o.Duration = -1 }, "must not be negative"},
			{func(o *drive.Options) { o.Offered = -1 }, "give 0 or more"},
		}
		for _, c := range cases {
			o := fine
			c.change(&o)
			if _, err := drive.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want an error with %q", err, c.want)
			}
		}
	})
}
