package drive_test

import (
	"context"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/loadtest/fakeserver"
	"github.com/tandem-serving/tandem/loadtest/finetimer"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

// outOfFiles is a server that every tenth request fails to reach for lack of local file
// descriptors.
type outOfFiles struct{ client.Client }

func (o outOfFiles) Do(ctx context.Context, q *workload.Request, clock client.Clock, r *record.Record) workload.Answer {
	if q.Session%10 != 9 {
		return o.Client.Do(ctx, q, clock, r)
	}
	r.End = clock.Now()
	r.Outcome, r.Code, r.Error = record.Unsent, client.CodeClient, "too many open files"
	return workload.Answer{}
}

// A request that this machine could not send is not the server's failure.
func TestOutOfFilesIsTheClientsBottleneck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run, err := drive.Run(t.Context(), drive.Options{
			Client: outOfFiles{rig(t, steady)}, Timer: finetimer.Portable(),
			Source: &source{every: 50 * ms, tokens: 3}, Offered: 20, Duration: 20 * time.Second, DrainTimeout: time.Minute,
		})
		if err != nil {
			t.Fatal(err)
		}
		if want := "40 of 400 requests could not be sent: too many open files"; run.Client.Bottleneck != want {
			t.Errorf("bottleneck %q, want %q", run.Client.Bottleneck, want)
		}
		if s := measure.Summarize(run, measure.Options{}); s.Verdict != measure.None || s.Unsent != 40 {
			t.Errorf("%d unsent, %s: %s", s.Unsent, s.Verdict, s.Reason)
		}
	})
}

// late is a timer that is sometimes late.
type late struct {
	finetimer.Timer
	waits int
	by    func(wait int) time.Duration
}

func (l *late) Wait(until time.Time) {
	l.Timer.Wait(until)
	l.waits++
	if by := l.by(l.waits); by > 0 {
		time.Sleep(by)
	}
}

// One late request of a few is chance, two are not; of many, more than 1% must be late.
func TestLateDispatch(t *testing.T) {
	for _, c := range []struct {
		requests, late int
		bottleneck     bool
	}{{50, 0, false}, {50, 1, false}, {50, 2, true}, {400, 4, false}, {400, 5, true}} {
		synctest.Test(t, func(t *testing.T) {
			run, err := drive.Run(t.Context(), drive.Options{
				Client: rig(t, fakeserver.Shape{TTFT: fakeserver.Delay{Mean: 20 * ms}}), Source: &source{every: 100 * ms, count: c.requests, tokens: 1},
				Offered: 10, DrainTimeout: time.Minute,
				Timer: &late{Timer: finetimer.Portable(), by: func(wait int) time.Duration {
					if wait > 5 && wait <= 5+c.late {
						return 10 * ms
					}
					return 0
				}},
			})
			if err != nil || len(run.Records) != c.requests {
				t.Fatalf("%v, %d requests", err, len(run.Records))
			}
			if got := run.Client.Bottleneck; (got != "") != c.bottleneck || c.bottleneck && !strings.Contains(got, map[bool]string{true: "requests were sent up to 10ms after they were due (2", false: "one request in a hundred was sent more than 10ms after it was due (2"}[c.requests < 100]) {
				t.Errorf("%d of %d late: bottleneck %q", c.late, c.requests, got)
			}
			if run.Client.LateAlone != c.bottleneck || drive.SentLate(run.Records) != c.bottleneck {
				t.Errorf("%d of %d late: late alone %t, sent late %t", c.late, c.requests, run.Client.LateAlone, drive.SentLate(run.Records))
			}
		})
	}
}

// A late client is blamed only if it used the processors itself.
func TestWhoHadTheProcessors(t *testing.T) {
	for _, c := range []struct {
		name string
		// busy is the share of all cores in use by all processes; negative: unknown.
		busy    float64
		want    string
		notWant string
	}{
		{"others", .97, "this machine was busy with other processes: they (the server too, if it runs here) used ", "more cores"},
		{"others now and then", .2, "this machine was busy with other processes: they (the server too, if it runs here) used ", "more cores"},
		{"nobody", .03, "%: the machine or its clock stalled", "more cores"},
		{"nobody knows", -1, ": lower the rate or give it more cores", "others"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				run, err := drive.Run(t.Context(), drive.Options{
					Client: rig(t, fakeserver.Shape{TTFT: fakeserver.Delay{Mean: 20 * ms}}), Source: &source{every: 100 * ms, count: 100, tokens: 1}, Offered: 10, DrainTimeout: time.Minute,
					Timer: &late{Timer: finetimer.Portable(), by: func(int) time.Duration { return 10 * ms }},
					Busy: func() (float64, bool) {
						return 1 + c.busy*float64(runtime.NumCPU())*time.Since(began).Seconds(), c.busy >= 0
					},
				})
				if err != nil {
					t.Fatal(err)
				}
				got := run.Client.Bottleneck
				if !strings.Contains(got, "one request in a hundred was sent more than 10ms after it was due") || !strings.Contains(got, c.want) || strings.Contains(got, c.notWant) {
					t.Errorf("bottleneck %q, want %q and no %q", got, c.want, c.notWant)
				}
				// What this test itself takes of the processors, which others did not, is real.
				if share := run.Client.OthersShare; (share == nil) != (c.busy < 0) || share != nil && math.Abs(*share-c.busy) > .02 {
					t.Errorf("others used %v, want %v", share, c.busy)
				}
			})
		})
	}
}

// A request that became due as the user ended the run is nobody's failure.
func TestInterruptedWhileBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		run, err := drive.Run(ctx, drive.Options{
			Client: rig(t, steady), Source: &source{every: 10 * ms, tokens: 1}, Offered: 100, Duration: time.Hour, DrainTimeout: time.Minute,
			Timer: &late{Timer: finetimer.Portable(), by: func(wait int) time.Duration {
				if wait == 300 {
					cancel()
					return 500 * ms
				}
				return 0
			}},
		})
		if err != nil || !run.Interrupted || len(run.Records) == 0 {
			t.Fatalf("%v: interrupted %t, %d requests", err, run.Interrupted, len(run.Records))
		}
		for _, r := range run.Records {
			if r.Outcome != record.Completed {
				t.Fatalf("due at %s: %s %s", r.Due, r.Outcome, r.Error)
			}
		}
	})
}
