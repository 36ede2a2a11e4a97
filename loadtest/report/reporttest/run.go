// Package reporttest makes runs and reports as of a loaded server, for tests of what
// reads and shows them. It computes a queue instead of measuring.
//
// Only tests import it. It starts no goroutines and reads no clock; equal arguments give
// equal results.
package reporttest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// Server models a server.
type Server struct {
	// PrefillPerS is its prompts per second, with exponentially distributed lengths; TPOT
	// is the time per token of a request alone in the batch.
	PrefillPerS float64
	TPOT        time.Duration
	// Disaggregated: decode does not slow prefill, and KV is transferred.
	Disaggregated bool
	// QueueLimit is how many may wait; further ones are refused.
	QueueLimit int
}

// began is the wall-clock time of all runs.
var began = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// Run offers rate requests per second for a duration after two seconds of warm-up.
func Run(s Server, rate float64, duration time.Duration, seed uint64) *record.Run {
	chance := rand.New(rand.NewPCG(seed, 1))
	const warmup = 2 * time.Second
	run := &record.Run{
		Began: began, Offered: rate, From: warmup, To: warmup + duration,
		Client: record.Client{Cores: 2, CPUSeconds: duration.Seconds() * 0.2, GCSeconds: 0.1, GCPauseMax: 180 * time.Microsecond, InFlightMax: 40, InFlightLimit: 4096},
	}
	var free time.Duration // when the prefill worker has finished all earlier prompts
	var ends []time.Duration
	due := time.Duration(0)
	for {
		due += seconds(chance.ExpFloat64() / rate)
		if due > run.To {
			break
		}
		r := &record.Record{
			Index: len(run.Records), ID: fmt.Sprintf("%08x", chance.Uint32()), Session: len(run.Records),
			Due: due, Admitted: record.Unset, PromptTokens: 64 + chance.IntN(400), CachedTokens: 16 * chance.IntN(4),
		}
		run.Records = append(run.Records, r)
		r.Dispatched = due + seconds(chance.ExpFloat64()*3e-5)
		r.Sent = r.Dispatched + seconds(5e-5)
		active := 0
		for _, end := range ends {
			if end > due {
				active++
			}
		}
		if wait := free - r.Sent; wait > seconds(float64(s.QueueLimit)/s.PrefillPerS) {
			r.Outcome, r.Code, r.Error = record.Rejected, "RESOURCE_EXHAUSTED", "the queue is full"
			r.End = r.Sent + time.Millisecond
			continue
		}
		free, ends = s.serve(r, free, ends, active, chance)
	}
	run.Drained = run.To
	for _, r := range run.Records {
		run.Drained = max(run.Drained, r.End)
	}
	run.Samples = samples(run)
	return run
}

// serve takes the request through all stages.
func (s Server) serve(r *record.Record, free time.Duration, ends []time.Duration, active int, chance *rand.Rand) (time.Duration, []time.Duration) {
	network := 150*time.Microsecond + seconds(chance.ExpFloat64()*1e-4)
	arrived := r.Sent + network
	tokenize, decide, reserve := 400*time.Microsecond, 60*time.Microsecond, 300*time.Microsecond
	begin := max(arrived+tokenize+decide+reserve, free)
	queue := begin - (arrived + tokenize + decide + reserve)
	prefill := seconds(chance.ExpFloat64() / s.PrefillPerS)
	if !s.Disaggregated {
		prefill += time.Duration(active) * s.TPOT / 12
	}
	firstAt := begin + prefill
	transfer := time.Duration(0)
	tpot := s.TPOT + time.Duration(active)*s.TPOT/20
	if s.Disaggregated {
		transfer = 2*time.Millisecond + seconds(chance.ExpFloat64()*1e-3)
	}
	tokens := 4 + chance.IntN(28)
	at := firstAt + network
	r.Admitted = arrived + tokenize + queue + network
	r.Arrivals = append(r.Arrivals, record.Arrival{At: at, Tokens: 1})
	var decode time.Duration
	for range tokens - 1 {
		step := time.Duration(float64(tpot) * (0.85 + 0.3*chance.Float64()))
		decode += step
		r.Arrivals = append(r.Arrivals, record.Arrival{At: at + transfer + decode, Tokens: 1})
	}
	total := firstAt - arrived + transfer + decode
	r.End = r.Last() + network/2
	r.Outcome, r.OutputTokens, r.FinishReason = record.Completed, tokens, "length"
	r.Timings = &inferencev1.Timings{
		TokenizeNs: int64(tokenize), QueueNs: int64(queue), DecideNs: int64(decide), ReserveNs: int64(reserve), PrefillNs: int64(prefill),
		TransferExposedNs: int64(transfer), DecodeNs: int64(decode), TotalNs: int64(total), TtftNs: int64(firstAt - arrived), PrefillQueueNs: int64(queue / 2),
	}
	r.Route = &inferencev1.Route{Mode: inferencev1.Mode_MODE_AGGREGATED, Prefill: "both-0", Decode: "both-0"}
	if s.Disaggregated {
		r.Route = &inferencev1.Route{Mode: inferencev1.Mode_MODE_DISAGGREGATED, Prefill: "prefill-0", Decode: "decode-0"}
	}
	return firstAt, append(ends, r.End)
}

// samples are the run's state four times a second.
func samples(run *record.Run) []record.Sample {
	var due, sent, ended, failed []time.Duration
	for _, r := range run.Records {
		due, sent, ended = append(due, r.Due), append(sent, r.Sent), append(ended, r.End)
		if r.Outcome != record.Completed {
			failed = append(failed, r.End)
		}
	}
	until := func(moments []time.Duration, at time.Duration) int {
		slices.Sort(moments)
		n, _ := slices.BinarySearch(moments, at+1)
		return n
	}
	var out []record.Sample
	for at := time.Duration(0); at <= run.Drained; at += 250 * time.Millisecond {
		out = append(out, record.Sample{
			At: at, Due: until(due, at), Sent: until(sent, at), Admitted: until(sent, at), Ended: until(ended, at), Failed: until(failed, at),
			CPUSeconds: at.Seconds() * 0.2,
		})
	}
	return out
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
