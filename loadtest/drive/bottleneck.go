package drive

import (
	"fmt"
	"runtime"
	"time"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/stats"
)

const (
	// A p99 dispatch delay up to dispatchDelayMost, or up to dispatchDelayShare of the
	// p99 TTFT, is acceptable: the delay is part of every latency and reported, and a
	// tenth is tolerable in a tail.
	dispatchDelayMost  = time.Millisecond
	dispatchDelayShare = .1
	// cpuShareMost is the share of its cores that the client may use.
	cpuShareMost = .9
	// lateShare is the share of requests that may be late, lateLeast the number that must
	// be: one of a few requests is chance.
	lateShare = .01
	lateLeast = 2
	// leastForP99 is the number of requests below which the p99 is the maximum.
	leastForP99 = 100
)

// bottleneck says why the client was the bottleneck; empty if it was not. lateAlone is
// record.Client.LateAlone. The package comment gives the rules.
func (r *run) bottleneck(run *record.Run) (why string, lateAlone bool) {
	total := len(run.Records)
	if r.stopped != "" {
		return blame(run, r.stopped, heldShare, "lower the rate, shorten the run, or give the client more cores", "lower the rate or shorten the run"), false
	}
	if r.unsent > 0 {
		return fmt.Sprintf("%d of %d requests were not sent, because %d were already in flight: lower the rate, or raise the limit of requests in flight",
			r.unsent, total, r.InFlightLimit), false
	}
	if n, why := unsendable(run.Records); n > 0 {
		return fmt.Sprintf("%d of %d requests could not be sent: %s", n, total, why), false
	}
	share := run.CPUShare()
	lateAlone = share <= cpuShareMost
	if tooMany(r.sourceLate, total) {
		const slow = "the client cannot make prompts that fast; lower the rate or shorten the prompts"
		return blame(run, fmt.Sprintf("%d of %d requests were made only after they were due", r.sourceLate, total), heldShare, slow, slow), lateAlone
	}
	var measured []*record.Record
	for _, rec := range run.Records {
		if rec.Due >= run.From {
			measured = append(measured, rec)
		}
	}
	if l := latenessOf(measured); l.tooMany {
		sent := "one request in a hundred was sent more than %s after it was due"
		if l.requests < leastForP99 {
			sent = "requests were sent up to %s after they were due"
		}
		what := fmt.Sprintf(sent+" (%s is acceptable)", l.p99.Round(10*time.Microsecond), l.acceptable.Round(10*time.Microsecond))
		return blame(run, what, momentShare, "lower the rate or give it more cores", "the machine or its clock stalled; measure again, or lower the rate"), lateAlone
	}
	if share > cpuShareMost {
		return fmt.Sprintf("the client used %.0f%% of its %d cores: give it more, or lower the rate", 100*share, run.Client.Cores), false
	}
	return "", false
}

// lateness is how late requests were sent that were sent at all.
type lateness struct {
	requests        int
	p99, acceptable time.Duration // of Dispatched - Due
	tooMany         bool          // were later than is acceptable
}

// SentLate reports whether the client was the bottleneck of these requests because it sent them late.
func SentLate(records []*record.Record) bool { return latenessOf(records).tooMany }

func latenessOf(records []*record.Record) lateness {
	var delays, ttfts []time.Duration
	for _, rec := range records {
		if rec.Dispatched < 0 {
			continue
		}
		delays = append(delays, rec.Dispatched-rec.Due)
		if rec.Outcome == record.Completed && rec.Sent >= 0 && len(rec.Arrivals) > 0 {
			ttfts = append(ttfts, rec.First()-rec.Sent)
		}
	}
	most := max(dispatchDelayMost, time.Duration(dispatchDelayShare*float64(stats.QuantileOf(ttfts, .99))))
	late := 0
	for _, delay := range delays {
		if delay > most {
			late++
		}
	}
	return lateness{len(delays), stats.QuantileOf(delays, .99), most, tooMany(late, len(delays))}
}

// tooMany reports whether late of n requests are more than chance and affect the p99.
func tooMany(late, n int) bool {
	return late >= lateLeast && float64(late) > lateShare*float64(n)
}

// unsendable counts the requests that this machine could not send, and returns the first
// reason.
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

const (
	// Above heldShare of the client's cores, others are blamed if the client used less.
	// momentShare is the same for a momentary delay: a process that uses half of the time
	// has all cores now and then.
	heldShare   = .5
	momentShare = .1
)

// blame is a sentence about what happened to a late client: who used its processors, and
// what to do. remedy applies if the client itself did, idle if nobody did. enough is the
// share from which others are to blame; the sentence then begins with them.
func blame(run *record.Run, what string, enough float64, remedy, idle string) string {
	own, others := run.CPUShare(), run.Client.OthersShare
	cores := fmt.Sprintf("%d cores", run.Client.Cores)
	if run.Client.Cores == 1 {
		cores = "only core"
	}
	switch {
	case others == nil:
		return what + fmt.Sprintf(", while the client used %.0f%% of its %s: %s", 100*own, cores, remedy)
	case *others >= enough && *others > own:
		return fmt.Sprintf("%s: they (the server too, if it runs here) used %.0f%% of the client's %s, the client %.0f%%; %s: stop them, or give the client cores of its own",
			record.MachineBusy, 100**others, cores, 100*own, what)
	case own < momentShare:
		remedy = idle
	}
	return what + fmt.Sprintf(", while the client used %.0f%% of its %s and others used %.0f%%: %s", 100*own, cores, 100**others, remedy)
}

// othersShare is the share of the client's cores that others used between From and To;
// nil if unknown.
func othersShare(run *record.Run) *float64 {
	if len(run.Samples) == 0 || run.Samples[len(run.Samples)-1].BusySeconds == 0 {
		return nil
	}
	share, ok := run.Used(runtime.NumCPU(), func(s *record.Sample) float64 { return s.BusySeconds - s.CPUSeconds })
	if !ok {
		return nil
	}
	share = min(max(share, 0), 1)
	return &share
}
