package overload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

// slowFrom20 is a load on a server that is slow from 20 requests a second on. sent counts its prompts.
func slowFrom20(t *testing.T, sent map[string]int) loadtest.Config {
	t.Helper()
	config := loadtest.DefaultConfig()
	config.SLO, config.Rate, config.Workload.Seed = "ttft:p90<200ms", 15, 5
	var err error
	if config.Workload.PromptTokens, err = workload.ParseLengths("8"); err != nil {
		t.Fatal(err)
	}
	config.Drive = func(_ context.Context, o drive.Options) (*record.Run, error) {
		run := &record.Run{Offered: o.Offered, From: o.Warmup, To: o.Warmup + o.Duration, Drained: o.Warmup + o.Duration}
		for {
			q, err := o.Source.Next()
			if err != nil {
				return run, nil
			}
			sent[fmt.Sprint(q.Prompt.TokenIDs)]++
			took := 10 * time.Millisecond
			if o.Offered > 20 {
				took = time.Second
			}
			run.Samples = append(run.Samples, record.Sample{At: q.Due, Due: len(run.Records), Ended: len(run.Records)})
			r := served(q.Due, took)
			r.Dispatched, r.Sent, r.Admitted, r.End, r.OutputTokens = q.Due, q.Due, q.Due, q.Due+took, 1
			run.Records = append(run.Records, r)
		}
	}
	return config
}

// Nothing that is measured sends a prompt that the server had before, in whose prefix cache it would be.
func TestNoPromptComesTwice(t *testing.T) {
	sent := map[string]int{}
	found, err := Run(t.Context(), slowFrom20(t, sent), described{}, []float64{1, 2}, nil)
	if err != nil || len(found.Steps) != 2 || found.RecoveryMs == nil {
		t.Fatalf("%+v, %v", found, err)
	}
	for prompt, times := range sent {
		if times > 1 {
			t.Fatalf("%s came %d times", prompt, times)
		}
	}
}

// What cannot run costs nothing of what was measured before it.
func TestWhatCannotRun(t *testing.T) {
	const why = "nothing left to send"
	for _, test := range []struct {
		name           string
		fails          func(drive.Options) bool
		step, recovery string
	}{
		{"the second step", func(o drive.Options) bool { return o.Offered > 35 }, why, ""},
		{"the burst", func(o drive.Options) bool { return o.Warmup == leastWarmup }, "", why},
	} {
		config := slowFrom20(t, map[string]int{})
		runs := config.Drive
		config.Drive = func(ctx context.Context, o drive.Options) (*record.Run, error) {
			if test.fails(o) {
				return nil, errors.New(why)
			}
			return runs(ctx, o)
		}
		found, err := Run(t.Context(), config, described{}, []float64{1, 2}, nil)
		if err != nil || len(found.Steps) != 2 || found.Steps[1].Client != test.step || found.RecoveryUnknown != test.recovery || (found.RecoveryMs == nil) != (test.recovery != "") {
			t.Errorf("%s: %+v, %v", test.name, found, err)
			continue
		}
		var table strings.Builder
		if err := found.WriteTable(&table); err != nil || strings.Contains(table.String(), "\n2      n/a        n/a        n/a ") != (test.step != "") {
			t.Errorf("%s: %v\n%s", test.name, err, table.String())
		}
		if text, err := json.Marshal(found.Steps[1]); err != nil || strings.Contains(string(text), `"offered_rps":null,"goodput_rps":null,"goodput_of_capacity":null`) != (test.step != "") {
			t.Errorf("%s: %s, %v", test.name, text, err)
		}
	}
}

// Where the client was the limit, nothing is said of the recovery, unless it was late in the burst alone.
func TestTheClientIsTheLimit(t *testing.T) {
	const why, began = "it was the limit", leastWarmup + calm
	for _, test := range []struct {
		name      string
		lateAlone bool
		from, to  time.Duration // when requests were due that were sent late
		known     bool
	}{
		{"late in the burst", true, began, began + burst, true},
		{"late before it", true, began - time.Second, began + burst, false},
		{"late after it", true, began, began + burst + time.Second, false},
		{"late in the burst, and something else", false, began, began + burst, false},
	} {
		config := slowFrom20(t, map[string]int{})
		runs := config.Drive
		config.Drive = func(ctx context.Context, o drive.Options) (*record.Run, error) {
			run, err := runs(ctx, o)
			if o.Warmup == leastWarmup {
				run.Client.Bottleneck, run.Client.LateAlone = why, test.lateAlone
				for _, r := range run.Records {
					if r.Due >= test.from && r.Due < test.to {
						r.Dispatched += 500 * time.Millisecond
					}
				}
			}
			return run, err
		}
		found, err := Run(t.Context(), config, described{}, []float64{2}, nil)
		if err != nil || (found.RecoveryMs != nil) != test.known || (found.RecoveryUnknown == why) == test.known {
			t.Errorf("%s: %+v, %v", test.name, found, err)
		}
	}
}

// A search that is interrupted has found no capacity: not one of 0.
func TestInterruptedBeforeACapacity(t *testing.T) {
	config := slowFrom20(t, map[string]int{})
	runs := config.Drive
	config.Drive = func(ctx context.Context, o drive.Options) (*record.Run, error) {
		run, err := runs(ctx, o)
		run.Interrupted = true
		return run, err
	}
	found, err := Run(t.Context(), config, described{}, []float64{2}, nil)
	if err != nil || !found.Interrupted {
		t.Fatalf("%+v, %v", found, err)
	}
	var table strings.Builder
	if err := found.WriteTable(&table); err != nil || table.String() != "no capacity was found yet, for ttft:p90<200ms\n" {
		t.Errorf("%v: %s", err, table.String())
	}
	if text, err := json.Marshal(found); err != nil || !strings.Contains(string(text), `"capacity_rps":null`) {
		t.Errorf("%s, %v", text, err)
	}
}

// described is a server that only says what it is.
type described struct{ client.Client }

func (described) Describe(context.Context) (client.Description, error) {
	return client.Description{Kind: "tandem", VocabularySize: 30000, ContextTokens: 4096}, nil
}

func served(due, ttft time.Duration) *record.Record {
	return &record.Record{Due: due, Outcome: record.Completed, Arrivals: []record.Arrival{{At: due + ttft, Tokens: 1}}}
}

func rejected(after time.Duration) *record.Record {
	return &record.Record{Outcome: record.Rejected, Dispatched: time.Second, End: time.Second + after}
}

// A p99 takes as many refusals as everywhere else.
func TestRefuseP99(t *testing.T) {
	var records []*record.Record
	for i := range 367 {
		records = append(records, rejected(time.Duration(i+1)*time.Millisecond))
	}
	records = append(records, &record.Record{Outcome: record.Completed, End: time.Hour})
	if got := refuseP99(records); got != nil {
		t.Errorf("of 367 refusals: %v", *got)
	}
	if got := refuseP99(append(records, rejected(time.Second))); got == nil || *got != 365 {
		t.Errorf("got %v, want 365 ms", got)
	}
}

func TestAdmittedByLength(t *testing.T) {
	var records []*record.Record
	for i := range 40 { // the longer, the more are refused
		r := &record.Record{Asked: 100 - i, Outcome: record.Completed}
		if quarter := (39 - i) / 10; i%10 < 2*quarter {
			r.Outcome = record.Rejected
		}
		records = append(records, r)
	}
	if got, want := admitted(records), [4]float64{1, 0.8, 0.6, 0.4}; got == nil || *got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	for name, alike := range map[string][]*record.Record{"nothing": nil, "equal lengths": slices.Repeat(records[:1], 40)} {
		if got := admitted(alike); got != nil {
			t.Errorf("of %s: %v", name, *got)
		}
	}
	var text strings.Builder
	if err := (&Result{CapacityRPS: new(1.0), GoodputRPS: new(1.0), Steps: []Step{{}}}).WriteTable(&text); err != nil || !strings.HasSuffix(text.String(), " n/a\n") {
		t.Errorf("%v: not n/a in\n%s", err, text.String())
	}
}

func TestRecovery(t *testing.T) {
	const began, ended = 10 * time.Second, 15 * time.Second
	var before []*record.Record
	for i := range 9 {
		before = append(before, served(time.Duration(i+1)*time.Second, time.Duration(i+1)*time.Millisecond))
	}
	const late, inTime = 10 * time.Millisecond, 9 * time.Millisecond
	// every has a request at each step of the time after the burst, which from there to there is late.
	every := func(step, from, to time.Duration) (all []*record.Record) {
		for at := time.Duration(0); at < 10*time.Second; at += step {
			took := inTime
			if at >= from && at < to {
				took = late
			}
			all = append(all, served(ended+at, took))
		}
		return all
	}
	const dense = 50 * time.Millisecond
	for _, test := range []struct {
		name        string
		after       []*record.Record
		want, worse float64 // milliseconds, below 0: unknown; of the parts after that
	}{
		{"at once", every(dense, 0, 0), 0, 0},
		{"late in the burst only", append(every(dense, 0, 0), served(12*time.Second, time.Minute)), 0, 0},
		{"a late quarter", every(dense, 0, 250*time.Millisecond), 250, 0},
		{"two of five late", every(dense, 0, 100*time.Millisecond), 0, 0},
		{"refusals", append(every(dense, 0, 0), slices.Repeat([]*record.Record{{Due: ended + 900*time.Millisecond, Outcome: record.Rejected}}, 6)...), 1000, 0},
		{"late long after", every(dense, 2*time.Second, 2250*time.Millisecond), 0, 1. / 40},
		{"twenty a second, late", every(dense, 0, time.Minute), -1, 0},
		{"two a second, late", every(500*time.Millisecond, 0, time.Minute), -1, 0},
		{"one a second, late", every(time.Second, 0, time.Minute), -1, 0},
		{"one late, then nothing", []*record.Record{served(ended+time.Second, late)}, -1, 0},
		{"one a second, in time", every(time.Second, 0, 0), -1, 0},
		{"five a second, of which one is late", every(200*time.Millisecond, time.Second, 1100*time.Millisecond), 0, 0},
		{"five a second, late in the first", every(200*time.Millisecond, 0, 950*time.Millisecond), 750, 0},
	} {
		var r Result
		r.recovered(append(before[:len(before):len(before)], test.after...), began, ended)
		got := -1.0
		if r.RecoveryMs != nil {
			got = *r.RecoveryMs
		}
		if got != test.want || r.WorseAfter != test.worse || r.WorseBefore != 0 || (r.RecoveryUnknown != "") != (test.want < 0) || strings.HasSuffix(test.name, ", late") != (r.RecoveryUnknown == "latencies were not as before within 10s") {
			t.Errorf("%s: %v ms, worse %v, then %v, %q; want %v ms, then %v", test.name, got, r.WorseBefore, r.WorseAfter, r.RecoveryUnknown, test.want, test.worse)
		}
	}
	var none Result
	if none.recovered(nil, began, ended); none.RecoveryMs != nil || none.RecoveryUnknown == "" {
		t.Errorf("without any before: %+v", none)
	}
}
