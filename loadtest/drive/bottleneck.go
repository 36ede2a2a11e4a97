package drive

import (
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/record"
)

const (
	// dispatchDelayMost is the dispatch delay at p99 that never counts, and
	// dispatchDelayShare what does not count as a share of TTFT at p99: the delay is
	// part of every latency and named in the report, and a tenth of the tail is what a
	// reader of a tail may put up with.
	dispatchDelayMost  = time.Millisecond
	dispatchDelayShare = .1
	// cpuShareMost is the share of its cores that the client may use.
	cpuShareMost = .9
	// lateShare is the share of requests that may be dispatched, or made, too late, and
	// lateLeast how many have to be: one of a few requests is chance.
	lateShare = .01
	lateLeast = 2
	// leastForP99 is how many requests there have to be for the p99 to be another than
	// the longest.
	leastForP99 = 100
)

// bottleneck says why the client was the bottleneck; empty if it was not. The rules
// are in the package comment.
func (r *run) bottleneck(run *record.Run) string {
	total := len(run.Records)
	if r.stopped != "" {
		return r.stopped + rateOf(run) + blame(run, heldShare, "lower the rate, shorten the run, or give the client more cores", "lower the rate or shorten the run")
	}
	if r.unsent > 0 {
		return fmt.Sprintf("%d of %d requests were not sent, because %d were already in flight: lower the rate, or raise the limit of requests in flight",
			r.unsent, total, r.InFlightLimit)
	}
	if n, why := unsendable(run.Records); n > 0 {
		return fmt.Sprintf("%d of %d requests could not be sent: %s", n, total, why)
	}
	if tooMany(r.sourceLate, total) {
		const slow = "the client cannot make prompts that fast; lower the rate or shorten the prompts"
		return fmt.Sprintf("%d of %d requests were made only after they were due%s", r.sourceLate, total, rateOf(run)) +
			blame(run, heldShare, slow, slow)
	}
	var delays, ttfts []time.Duration
	for _, rec := range run.Records {
		if rec.Due < run.From || rec.Dispatched < 0 {
			continue
		}
		delays = append(delays, rec.Dispatched-rec.Due)
		if rec.Outcome == record.Completed && rec.Sent >= 0 && len(rec.Arrivals) > 0 {
			ttfts = append(ttfts, rec.First()-rec.Sent)
		}
	}
	share := cpuShare(run)
	most := max(dispatchDelayMost, time.Duration(dispatchDelayShare*float64(percentile(ttfts, .99))))
	late := 0
	for _, delay := range delays {
		if delay > most {
			late++
		}
	}
	if tooMany(late, len(delays)) {
		name, delay := "p99", percentile(delays, .99)
		if len(delays) < leastForP99 {
			name = "at most"
		}
		return fmt.Sprintf("requests went out late (%s %s after they were due; %s is allowed)%s", name, delay.Round(10*time.Microsecond), most.Round(10*time.Microsecond), rateOf(run)) +
			blame(run, momentShare, "lower the rate or give it more cores", "the machine or its clock stalled; measure again, or lower the rate")
	}
	if share > cpuShareMost {
		return fmt.Sprintf("the client used %.0f%% of its %d cores: give it more, or lower the rate", 100*share, run.Client.Cores)
	}
	return ""
}

// tooMany: so many of n requests were late that it is neither chance nor below p99.
func tooMany(late, n int) bool {
	return late >= lateLeast && float64(late) > lateShare*float64(n)
}

// unsendable counts the requests that this machine could not send, and says why the
// first could not.
func unsendable(records []*record.Record) (n int, why string) {
	for _, rec := range records {
		if rec.Outcome == record.Unsent && rec.Code == client.CodeClient {
			if n == 0 {
				why = rec.Error
			}
			n++
		}
	}
	return n, why
}

// rateOf says what rate was reached, if one was asked for.
func rateOf(run *record.Run) string {
	seconds := run.To.Seconds()
	if run.Offered == 0 || seconds <= 0 {
		return ""
	}
	sent := 0
	for _, rec := range run.Records {
		if rec.Dispatched >= 0 {
			sent++
		}
	}
	return fmt.Sprintf(" at %.0f of %.0f requests/s", float64(sent)/seconds, run.Offered)
}

const (
	// heldShare is the share of its cores from which others are held to be what kept the
	// client from its work, if it used less itself. For a moment they are it from
	// momentShare on: what has the cores half of the time has all of them now and then.
	heldShare   = .5
	momentShare = .1
)

// blame ends the sentence of a client that was late: who had its processors, and what
// to do. remedy is for a client that had them itself, idle for one that nobody kept from
// them. enough is the share of others from which they are to blame.
func blame(run *record.Run, enough float64, remedy, idle string) string {
	own, others := cpuShare(run), run.Client.OthersShare
	cores := fmt.Sprintf("%d cores", run.Client.Cores)
	if run.Client.Cores == 1 {
		cores = "only core"
	}
	switch {
	case others == nil:
		return fmt.Sprintf(", with %.0f%% of its %s in use: %s", 100*own, cores, remedy)
	case *others >= enough && *others > own:
		return fmt.Sprintf(", while other processes (the server too, if it runs here) used %.0f%% of the client's %s and the client %.0f%%: give it cores of its own, or stop the others",
			100**others, cores, 100*own)
	case own < momentShare:
		remedy = idle
	}
	return fmt.Sprintf(", while it used %.0f%% of its %s and others used %.0f%%: %s", 100*own, cores, 100**others, remedy)
}

// cpuShare is the share of its cores that the client used between From and To.
func cpuShare(run *record.Run) float64 {
	share, _ := used(run, max(run.Client.Cores, 1), func(s *record.Sample) float64 { return s.CPUSeconds })
	return share
}

// othersShare is the share of the cores that the client may use that others used
// between From and To; nil if nobody knows.
func othersShare(run *record.Run) *float64 {
	if len(run.Samples) == 0 || run.Samples[len(run.Samples)-1].BusySeconds == 0 {
		return nil
	}
	share, ok := used(run, runtime.NumCPU(), func(s *record.Sample) float64 { return s.BusySeconds - s.CPUSeconds })
	if !ok {
		return nil
	}
	share = min(max(share, 0), 1)
	return &share
}

// used is the share of so many cores that a count of seconds grew by between From and
// To; false if that is too short to say.
func used(run *record.Run, cores int, seconds func(*record.Sample) float64) (share float64, ok bool) {
	var first, last *record.Sample
	for i := range run.Samples {
		s := &run.Samples[i]
		if s.At <= run.From || first == nil {
			first = s
		}
		if s.At <= run.To || last == nil {
			last = s
		}
	}
	if first == nil || last.At-first.At < time.Second {
		return 0, false
	}
	return (seconds(last) - seconds(first)) / ((last.At - first.At).Seconds() * float64(cores)), true
}

// percentile sorts the values and takes the one at share p; 0 if there are none.
func percentile(values []time.Duration, p float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[min(int(p*float64(len(values))), len(values)-1)]
}
