package drive

import (
	"slices"
	"sort"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
)

// sampler takes samples in a goroutine of its own.
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
		At: r.clock.Now(), CPUSeconds: s.meter.cpuSeconds(),
		// In an order in which none can be above the one before.
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

// recount makes the counts of the samples those of the records, which say exactly
// what came when.
func recount(run *record.Run) {
	var due, sent, admitted, ended, failures []time.Duration
	tokens := make([]int64, len(run.Samples)+1)
	for _, r := range run.Records {
		due = append(due, r.Due)
		end := r.End
		if r.Outcome == record.Unsent {
			end = r.Due // it is waited for no longer
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
