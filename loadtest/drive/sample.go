package drive

import (
	"math"
	"runtime"
	"runtime/metrics"
	"slices"
	"sort"
	"time"

	"github.com/tandem-serving/tandem/loadtest/processor"
	"github.com/tandem-serving/tandem/loadtest/record"
)

// sampler takes samples in its own goroutine.
type sampler struct {
	run     *run
	meter   *meter
	quit    chan struct{}
	done    chan struct{}
	samples []record.Sample
}

func newSampler(r *run, m *meter) *sampler {
	s := &sampler{run: r, meter: m, quit: make(chan struct{}), done: make(chan struct{})}
	s.take()
	go s.loop()
	return s
}

func (s *sampler) loop() {
	defer close(s.done)
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		select {
		case <-s.quit:
			s.take()
			return
		case <-ticker.C:
			s.take()
		}
	}
}

func (s *sampler) take() {
	r := s.run
	sample := record.Sample{
		At: r.clock.Now(), CPUSeconds: s.meter.cpuSeconds(), BusySeconds: s.meter.busySeconds(),
		// In an order that keeps each count at most the one before it.
		Failed: int(r.failed.Load()), Ended: int(r.ended.Load()),
		Tokens: max(r.counts.Tokens(), r.tokens.Load()), Admitted: r.counts.Admitted(),
		Sent: int(r.sent.Load()), Due: int(r.due.Load()),
	}
	if len(s.samples) == 0 {
		sample.At = 0
	}
	s.samples = append(s.samples, sample)
	if r.Progress != nil {
		r.Progress(sample)
	}
}

// close takes the last sample, ends the goroutine and returns all samples.
func (s *sampler) close() []record.Sample {
	close(s.quit)
	<-s.done
	return s.samples
}

// recount replaces the samples' counts by exact ones from the records.
func recount(run *record.Run) {
	var due, sent, admitted, ended, failures []time.Duration
	tokens := make([]int64, len(run.Samples)+1)
	for _, r := range run.Records {
		due = append(due, r.Due)
		end := r.End
		if r.Outcome == record.Unsent {
			end = r.Due // no longer waited for
		}
		for _, m := range []struct {
			at time.Duration
			to *[]time.Duration
		}{{r.Sent, &sent}, {r.Admitted, &admitted}, {end, &ended}} {
			if m.at >= 0 {
				*m.to = append(*m.to, m.at)
			}
		}
		if failed(r.Outcome) && end >= 0 {
			failures = append(failures, end)
		}
		next := 0
		for _, a := range r.Arrivals {
			if next < len(run.Samples) && run.Samples[next].At < a.At {
				rest := run.Samples[next:]
				next += sort.Search(len(rest), func(i int) bool { return rest[i].At >= a.At })
			}
			tokens[next] += int64(a.Tokens)
		}
	}
	for _, moments := range [][]time.Duration{due, sent, admitted, ended, failures} {
		slices.Sort(moments)
	}
	total := int64(0)
	for i := range run.Samples {
		s := &run.Samples[i]
		until := func(moments []time.Duration) int {
			return sort.Search(len(moments), func(i int) bool { return moments[i] > s.At })
		}
		total += tokens[i]
		s.Due, s.Sent, s.Admitted, s.Ended, s.Failed, s.Tokens = until(due), until(sent), until(admitted), until(ended), until(failures), total
	}
}

// meter measures the process since its creation.
type meter struct {
	cpu    float64
	busy   func() (seconds float64, ok bool)
	busy0  float64
	gc     float64
	pauses []uint64
}

func newMeter(busy func() (seconds float64, ok bool)) *meter {
	gc, pauses := collector()
	if busy == nil {
		cores := processor.Cores()
		busy = func() (float64, bool) { return processor.Busy(cores) }
	}
	m := &meter{cpu: processCPUSeconds(), gc: gc, busy: busy}
	m.busy0, _ = busy()
	if pauses != nil {
		m.pauses = append(m.pauses, pauses.Counts...)
	}
	return m
}

// cpuSeconds used by the process since then.
func (m *meter) cpuSeconds() float64 { return processCPUSeconds() - m.cpu }

// busySeconds used by all processes since then, 0 if unknown.
func (m *meter) busySeconds() float64 {
	if now, ok := m.busy(); ok && m.busy0 > 0 {
		return max(now-m.busy0, 0)
	}
	return 0
}

func (m *meter) client() record.Client {
	gc, pauses := collector()
	return record.Client{
		Cores:      min(runtime.NumCPU(), runtime.GOMAXPROCS(0)),
		CPUSeconds: m.cpuSeconds(), GCSeconds: gc - m.gc, GCPauseMax: longest(pauses, m.pauses),
	}
}

// collector returns the collector's CPU seconds, as of its last cycle, and its pauses.
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
