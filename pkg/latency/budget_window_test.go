package latency_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/latency"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func TestWindowForgets(t *testing.T) {
	w := latency.NewWindow(10 * time.Second)
	w.Record(noon, 5*time.Second)
	for i := range 9 {
		w.Record(noon.Add(time.Duration(i)*time.Second), ms)
	}
	d := w.Snapshot(noon.Add(10 * time.Second))
	if d.Count != 10 || d.Max != 5*time.Second || d.Sum != 5*time.Second+9*ms || d.Quantile(1) != 5*time.Second {
		t.Errorf("within its length: %+v", d)
	}
	d = w.Snapshot(noon.Add(11 * time.Second))
	if d.Count != 8 || d.Max != ms || d.AllCount != 10 || d.AllSum != 5*time.Second+9*ms {
		t.Errorf("a tenth later: %+v", d)
	}
	if d = w.Snapshot(noon.Add(time.Hour)); d.Count != 0 || d.Sum != 0 || d.Quantile(.99) != 0 || d.AllCount != 10 {
		t.Errorf("long after: %+v", d)
	}
	w.Record(noon.Add(2*time.Hour), 2*ms)
	w.Record(noon.Add(time.Hour), 3*ms) // it waited for the lock: it counts as of now
	if d = w.Snapshot(noon.Add(2 * time.Hour)); d.Count != 2 || d.Max != 3*ms {
		t.Errorf("again: %+v", d)
	}
}

func TestWindowTakesWhatIsOutOfRange(t *testing.T) {
	w := latency.NewWindow(time.Minute)
	w.Record(noon, -time.Second)
	w.Record(noon, 0)
	w.Record(noon, 1<<62)
	if d := w.Snapshot(noon); d.Count != 3 || d.Max != 1<<62 || d.Quantile(1) != 1<<62 || d.Quantile(.5) > time.Microsecond {
		t.Errorf("%+v, median %v", d, d.Quantile(.5))
	}
}

// Quantiles are those of the sorted values, at most 1% higher, or 511 ns if that is more,
// and count, sum and largest are exact.
func TestWindowQuantiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(0, int64(time.Minute)), 1, 300).Draw(t, "values")
		w := latency.NewWindow(time.Hour)
		var sum time.Duration
		for i, v := range values {
			w.Record(noon.Add(time.Duration(i)*10*time.Second), time.Duration(v))
			sum += time.Duration(v)
		}
		d := w.Snapshot(noon.Add(50 * time.Minute))
		slices.Sort(values)
		n := len(values)
		if d.Count != int64(n) || d.Sum != sum || int64(d.Max) != values[n-1] {
			t.Fatalf("%+v of %v", d, values)
		}
		for _, percent := range []int{1, 50, 90, 99, 100} {
			exact := time.Duration(values[max((n*percent+99)/100, 1)-1])
			got := d.Quantile(float64(percent) / 100)
			if got < exact || got > exact+max(exact/100, 511) {
				t.Fatalf("p%d is %v, want %v", percent, got, exact)
			}
		}
	})
}

func TestCounts(t *testing.T) {
	c := latency.NewCounts(10*time.Second, 3)
	c.Add(noon, 0)
	c.Add(noon.Add(5*time.Second), 2)
	c.Add(noon.Add(5*time.Second), 2)
	if got := c.Snapshot(noon.Add(10 * time.Second)); !slices.Equal(got, []int64{1, 0, 2}) {
		t.Errorf("%v", got)
	}
	if got := c.Snapshot(noon.Add(12 * time.Second)); !slices.Equal(got, []int64{0, 0, 2}) {
		t.Errorf("%v", got)
	}
}

// What is read while others record is of one moment: as many as were counted.
func TestWindowIsSafeForConcurrentUse(t *testing.T) {
	w := latency.NewWindow(time.Second)
	var wait sync.WaitGroup
	const each = 2000
	for range 4 {
		wait.Go(func() {
			for i := range each {
				w.Record(noon.Add(time.Duration(i)*100*time.Microsecond), ms)
			}
		})
	}
	for range 50 {
		if d := w.Snapshot(noon); d.Count != d.AllCount || d.Sum != d.AllSum {
			t.Fatalf("%+v", d)
		}
	}
	wait.Wait()
	if d := w.Snapshot(noon); d.Count != 4*each {
		t.Errorf("%+v", d)
	}
}

func TestRecordAllocatesNothing(t *testing.T) {
	w := latency.NewWindow(time.Minute)
	w.Record(noon, ms)
	if n := testing.AllocsPerRun(1000, func() { w.Record(noon, ms) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkWindowRecord(b *testing.B) {
	w := latency.NewWindow(time.Minute)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := time.Duration(0); pb.Next(); i++ {
			w.Record(noon, i*time.Microsecond)
		}
	})
}

func BenchmarkWindowSnapshot(b *testing.B) {
	w := latency.NewWindow(time.Minute)
	for i := range 100_000 {
		w.Record(noon.Add(time.Duration(i)*500*time.Microsecond), time.Duration(i)*time.Microsecond)
	}
	for b.Loop() {
		w.Snapshot(noon.Add(50 * time.Second))
	}
}
