package joining

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/services/router/internal/fleet"
)

// complete ends the request well, if what the workers sent bears that out.
func (j *Join) complete(now time.Time, reason inferencev1.FinishReason) {
	if len(j.tokens) == j.try.base {
		j.broken(now, Decode, "ended without a token")
		return
	}
	if reason == inferencev1.FinishReason_FINISH_REASON_UNSPECIFIED {
		natural, ok := j.naturalEnd()
		if !ok {
			j.broken(now, Decode, "ended without a reason")
			return
		}
		reason = natural
	}
	text, stop := j.p.Text.Flush()
	if stop != "" {
		reason = inferencev1.FinishReason_FINISH_REASON_STOP
	}
	j.succeed(now, reason, text, stop)
}

// naturalEnd reports that the tokens so far are all there can be.
func (j *Join) naturalEnd() (inferencev1.FinishReason, bool) {
	n := len(j.tokens)
	switch {
	case n > 0 && slices.Contains(j.p.StopTokens, j.tokens[n-1]):
		return inferencev1.FinishReason_FINISH_REASON_STOP, true
	case n >= j.p.MaxTokens:
		return inferencev1.FinishReason_FINISH_REASON_LENGTH, true
	}
	return 0, false
}

func (j *Join) succeed(now time.Time, reason inferencev1.FinishReason, text, stop string) {
	t := &j.try
	route := &inferencev1.Route{
		Mode:         t.Mode,
		Prefill:      t.Prefill.ID,
		Decode:       t.Decode.ID,
		Reason:       t.Reason,
		Retries:      uint32(j.attempt),
		Reproducible: !j.lossy, // a restart stays within its lineage
		Transport:    t.transport,
	}
	if !t.disaggregated() {
		route.Prefill = t.Decode.ID
	}
	j.finish(now, Finish{
		Reason: reason,
		Text:   text,
		Stop:   stop,
		Usage: &inferencev1.Usage{
			PromptTokens:     uint32(j.p.PromptTokens),
			CachedTokens:     min(t.cached, uint32(j.p.PromptTokens)),
			CompletionTokens: uint32(len(j.tokens)),
		},
		Route:         route,
		Timings:       j.timings(),
		FetchedTokens: int(min(t.fetched, uint32(j.p.PromptTokens))),
	})
}

// finish is the only place that a Finish comes from.
func (j *Join) finish(now time.Time, f Finish) {
	if j.phase == asking {
		j.do(Withdraw{})
	}
	hadTry := j.phase == running
	j.phase = finished
	j.released = !hadTry
	j.do(f)
	if f.Err != nil {
		j.closeAll(func(Stream) bool { return true })
	} else {
		j.lingerAt = now.Add(j.p.Linger)
	}
	j.release()
}

// release gives the last try's share of the workers back once its streams are
// closed.
func (j *Join) release() {
	if j.released {
		return
	}
	for s := range j.open {
		if s.Attempt == j.attempt {
			return
		}
	}
	j.released = true
	j.do(Release{Attempt: j.attempt})
}

// broken fails a try whose worker does not keep to the protocol.
func (j *Join) broken(now time.Time, side Side, what string) {
	worker := j.try.Decode
	if side == Prefill {
		worker = j.try.Prefill
	}
	j.fail(now, side, status.Errorf(codes.Internal, "worker %s %s", worker.ID, what))
}

// fail ends a try because a worker failed, and asks for another.
func (j *Join) fail(now time.Time, side Side, err error) {
	code := status.Code(err)
	if reason, ok := j.naturalEnd(); ok && len(j.tokens) > j.try.base {
		// Everything is there but the worker's last word.
		text, stop := j.p.Text.Flush()
		if stop != "" {
			reason = inferencev1.FinishReason_FINISH_REASON_STOP
		}
		j.succeed(now, reason, text, stop)
		j.closeAll(func(Stream) bool { return true })
		return
	}
	failures := j.blame(side, err)
	failure := failures[0]
	final := error(nil)
	switch {
	case code == codes.InvalidArgument || code == codes.DeadlineExceeded:
		// Another worker would say the same, and this one is not to blame: its word
		// of the request's own deadline can be quicker than our timer.
		final, failures = err, nil
	case failure.Busy:
		if j.refused++; j.refused > j.p.MaxRefusals {
			final = &fleet.Refusal{Code: codes.ResourceExhausted, Reason: fleet.ReasonQueueTimeout,
				Message:    fmt.Sprintf("workers refused %d times for want of room, last: %s; retry later", j.refused, status.Convert(err).Message()),
				RetryAfter: max(failure.RetryAfter, time.Second)}
		}
	default:
		j.failed++
		switch {
		case j.failed < j.p.MaxAttempts:
		case failure.Unreached != (fleet.Ref{}):
			refusal := fleet.Unreachable(failure.Worker.ID, failure.Unreached.ID, failure.Why, 0)
			final = &refusal
		default:
			final = &fleet.Refusal{Code: codes.Unavailable, Reason: fleet.ReasonWorkerLost,
				Message:    fmt.Sprintf("workers failed in %d tries, last %s: %s; retry later", j.failed, failure.Worker.ID, status.Convert(err).Message()),
				RetryAfter: time.Second}
		}
	}
	attempt := j.attempt
	j.closeAll(func(s Stream) bool { return s.Attempt == attempt })
	j.released = true
	release := Release{Attempt: attempt, Failures: failures}
	if len(failures) > 0 {
		release.Err = err
	}
	j.do(release)
	if final != nil {
		j.phase = fresh // the try is over
		j.finish(now, Finish{Err: final})
		return
	}
	if !failure.Busy {
		j.failures = append(j.failures, failures...)
	}
	j.attempt++
	j.ask(now)
}

// blame says which workers a failure speaks against, the one that it came from
// first.
func (j *Join) blame(side Side, err error) []fleet.Failure {
	code, reason := status.Code(err), rpc.Reason(err)
	failed, other := j.try.Decode, j.try.Prefill
	if side == Prefill {
		failed, other = other, failed
	}
	first := fleet.Failure{Worker: failed, Silent: reason == ReasonWorkerSilent}
	switch {
	case reason == worker.ReasonTransferUnreachable && side == Prefill:
		first.Unreached, first.Why = other, status.Convert(err).Message()
	case reason == worker.ReasonTransferFailed || reason == worker.ReasonTransferRefused,
		first.Silent && side == Prefill && j.try.first: // it sends, if decode takes it
		// Either end may be the cause, and both answer: another pair is better,
		// but the same one may do.
		return []fleet.Failure{first, {Worker: other}}
	case code == codes.ResourceExhausted:
		first.Busy = true
		first.RetryAfter, _ = rpc.RetryAfter(err)
	case reason == worker.ReasonWrongEpoch:
		first.Gone, first.Replaced = true, true
	case code == codes.Unavailable:
		first.Gone, first.Leaves = true, reason == worker.ReasonDraining
	}
	return []fleet.Failure{first}
}
