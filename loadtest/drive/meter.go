package drive

import (
	"math"
	"runtime"
	"runtime/metrics"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
)

// meter measures the process from its making on.
type meter struct {
	cpu    float64
	gc     float64
	pauses []uint64
}

func newMeter() *meter {
	gc, pauses := collector()
	m := &meter{cpu: processCPUSeconds(), gc: gc}
	if pauses != nil {
		m.pauses = append(m.pauses, pauses.Counts...)
	}
	return m
}

// cpuSeconds is what the process used since.
func (m *meter) cpuSeconds() float64 { return processCPUSeconds() - m.cpu }

// client is all of it.
func (m *meter) client() record.Client {
	gc, pauses := collector()
	return record.Client{
		Cores:      min(runtime.NumCPU(), runtime.GOMAXPROCS(0)),
		CPUSeconds: m.cpuSeconds(), GCSeconds: gc - m.gc, GCPauseMax: longest(pauses, m.pauses),
	}
}

// collector is the seconds of CPU that the collector has used, as of its last
// cycle, and its pauses.
func collector() (seconds float64, pauses *metrics.Float64Histogram) {
	samples := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/sched/pauses/total/gc:seconds"}}
	metrics.Read(samples)
	if samples[0].Value.Kind() == metrics.KindFloat64 {
		seconds = samples[0].Value.Float64()
	}
	if samples[1].Value.Kind() == metrics.KindFloat64Histogram {
		pauses = samples[1].Value.Float64Histogram()
	}
	return seconds, pauses
}

// longest is the upper bound of the highest bucket that has grown since before.
func longest(pauses *metrics.Float64Histogram, before []uint64) time.Duration {
	if pauses == nil {
		return 0
	}
	for i, count := range slices.Backward(pauses.Counts) {
		if i < len(before) && count == before[i] || count == 0 {
			continue
		}
		bound := pauses.Buckets[i+1]
		if math.IsInf(bound, 1) {
			bound = pauses.Buckets[i]
		}
		return time.Duration(bound * float64(time.Second))
	}
	return 0
}
