package record_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
)

// Requests count that are due within the window, both ends included.
func TestWindow(t *testing.T) {
	const s = time.Second
	run := &record.Run{From: 2 * s, To: 6 * s}
	for due := range 9 {
		run.Records = append(run.Records, &record.Record{Index: due, Due: time.Duration(due) * s})
	}
	var got []int
	for r := range run.Window() {
		got = append(got, r.Index)
	}
	if !slices.Equal(got, []int{2, 3, 4, 5, 6}) {
		t.Error(got)
	}
	for r := range run.Window() {
		if r.Index != 2 {
			t.Errorf("%d came before the first", r.Index)
		}
		break
	}
}

// The client's share is of its cores in the measured window: neither the warm-up nor the drain counts.
func TestCPUShare(t *testing.T) {
	const s = time.Second
	run := &record.Run{From: 2 * s, To: 6 * s, Drained: 100 * s, Client: record.Client{Cores: 2, CPUSeconds: 500}}
	if got := run.CPUShare(); got != 0 {
		t.Errorf("without samples it is %v", got)
	}
	for at, used := range []float64{0, 10, 20, 21, 22, 23, 24, 400} {
		run.Samples = append(run.Samples, record.Sample{At: time.Duration(at) * s, CPUSeconds: used})
	}
	if got := run.CPUShare(); got != 0.5 {
		t.Errorf("4 of 8 core seconds are %v", got)
	}
}
