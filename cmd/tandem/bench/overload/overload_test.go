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
	for _, test := range []struct {
		name  string
		after []*record.Record
		want  float64 // milliseconds
	}{
		{"at once", []*record.Record{served(12*time.Second, time.Minute), served(16*time.Second, 9*time.Millisecond)}, 0},
		{"a late token", []*record.Record{served(16*time.Second, 10*time.Millisecond), served(17*time.Second, time.Millisecond)}, 1250},
		{"one of three late", []*record.Record{
			served(16*time.Second, 10*time.Millisecond), served(16010*time.Millisecond, time.Millisecond), served(16020*time.Millisecond, time.Millisecond),
		}, 0},
		{"a refusal", []*record.Record{served(16*time.Second, time.Second), {Due: 17 * time.Second, Outcome: record.Rejected}}, 2250},
	} {
		if got := recovery(append(before[:len(before):len(before)], test.after...), began, ended); got == nil || *got != test.want {
			t.Errorf("%s: %v, want %v ms", test.name, got, test.want)
		}
	}
	if got := recovery(nil, began, ended); got != nil {
		t.Errorf("without any before: %v", *got)
	}
}
