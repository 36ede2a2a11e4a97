package overload

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
)

func rejected(after time.Duration) *record.Record {
	return &record.Record{Outcome: record.Rejected, Dispatched: time.Second, End: time.Second + after}
}

func TestRefuseP99(t *testing.T) {
	var records []*record.Record
	for i := range 99 {
		records = append(records, rejected(time.Duration(i+1)*time.Millisecond))
	}
	records = append(records, &record.Record{Outcome: record.Completed, End: time.Hour})
	if got := refuseP99(records); got != nil {
		t.Errorf("of 99 refusals: %v", *got)
	}
	if got := refuseP99(append(records, rejected(time.Second))); got == nil || *got != 99 {
		t.Errorf("got %v, want 99 ms", got)
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
	if got, want := admitted(records), [4]float64{1, 0.8, 0.6, 0.4}; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := admitted(nil); got != [4]float64{} {
		t.Errorf("of nothing: %v", got)
	}
}

func TestRecovery(t *testing.T) {
	served := func(due, ttft time.Duration) *record.Record {
		return &record.Record{Due: due, Outcome: record.Completed, Arrivals: []record.Arrival{{At: due + ttft, Tokens: 1}}}
	}
	const began, ended = 10 * time.Second, 15 * time.Second
	var before []*record.Record
	for i := range 9 {
		before = append(before, served(time.Duration(i+1)*time.Second, time.Duration(i+1)*time.Millisecond))
	}
	after := func(d time.Duration) time.Duration { return ended + d }
	for _, test := range []struct {
		name        string
		after       []*record.Record
		want, worse float64 // milliseconds; of the windows after that
	}{
		{"at once", []*record.Record{served(12*time.Second, time.Minute), served(after(time.Second), 9*time.Millisecond)}, 0, 0},
		{"a late token", []*record.Record{served(after(0), 10*time.Millisecond), served(after(time.Second), time.Millisecond)}, 250, 0},
		{"one of three late", []*record.Record{
			served(after(0), 10*time.Millisecond), served(after(time.Millisecond), time.Millisecond), served(after(2*time.Millisecond), time.Millisecond),
		}, 0, 0},
		{"a refusal", []*record.Record{served(after(0), time.Second), {Due: after(900 * time.Millisecond), Outcome: record.Rejected}}, 1000, 0},
		{"a late token long after", []*record.Record{served(after(2*time.Second), 10*time.Millisecond)}, 0, 1. / 40},
		{"late tokens for all of the time", func() (all []*record.Record) {
			for at := ended; at < ended+10*time.Second; at += 500 * time.Millisecond {
				all = append(all, served(at, time.Second))
			}
			return all
		}(), 10000, 0},
	} {
		var r Result
		if r.recovered(append(before[:len(before):len(before)], test.after...), began, ended); r.RecoveryMs == nil || *r.RecoveryMs != test.want || r.WorseAfter != test.worse || r.WorseBefore != 0 {
			t.Errorf("%s: %v ms, worse %v, then %v; want %v ms, then %v", test.name, r.RecoveryMs, r.WorseBefore, r.WorseAfter, test.want, test.worse)
		}
	}
	var none Result
	if none.recovered(nil, began, ended); none.RecoveryMs != nil {
		t.Errorf("without any before: %v", *none.RecoveryMs)
	}
}
