package joining

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// complete ends the request well, if the tokens bear that out. Why it ended is theirs
// to say, not the worker's.
func (j *Join) complete(now time.Time, side Side) {
	if len(j.tokens) == j.attempt.base {
		j.broken(now, side, "ended without a token")
		return
	}
	reason, over := j.naturalEnd()
	if !over {
		j.broken(now, side, fmt.Sprintf("ended after %d of %d tokens without a stop token", len(j.tokens), j.p.MaxTokens))
		return
	}
	j.ends(now, reason)
}

// ends ends the request well for a reason, but for a stop text in what was held back.
func (j *Join) ends(now time.Time, reason inferencev1.FinishReason) {
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
	case j.stopped:
		return inferencev1.FinishReason_FINISH_REASON_STOP, true
	case n >= j.attempt.most:
		return inferencev1.FinishReason_FINISH_REASON_LENGTH, true
	}
	return 0, false
}

func (j *Join) succeed(now time.Time, reason inferencev1.FinishReason, text, stop string) {
	t := &j.attempt
	route := &inferencev1.Route{
		Mode:         inferencev1.Mode_MODE_DISAGGREGATED,
		Prefill:      t.Prefill.ID,
		Decode:       t.Decode.ID,
		Reason:       t.reason,
		Retries:      uint32(j.retries),
		Hedged:       j.hedged,
		Reproducible: !j.approximate, // a restart stays within its version
		Transport:    t.transport,
	}
	if !t.disaggregated {
		route.Mode, route.Prefill = inferencev1.Mode_MODE_AGGREGATED, t.Decode.ID
	}
	j.finish(now, Finish{
		Reason: reason,
		Text:   text,
		Stop:   stop,
		Usage: &inferencev1.Usage{
			PromptTokens:     uint32(j.p.PromptTokens),
			CachedTokens:     min(t.cached, uint32(j.p.PromptTokens)),
			CompletionTokens: uint32(len(j.tokens)),
			DraftTokens:      t.drafts, AcceptedDraftTokens: t.acceptedDrafts,
		},
		Route:         route,
		Timings:       j.timings(),
		FetchedTokens: int(min(t.fetched, uint32(j.p.PromptTokens))),
		MeanState:     t.ended.GetMeanState(),
	})
}

// drafted takes in how many tokens the worker says it has guessed at, and how many of those were
// right; 0 if it contradicts itself.
func (t *attempt) drafted(drafts, accepted uint32) {
	if accepted > drafts {
		drafts, accepted = 0, 0
	}
	t.drafts, t.acceptedDrafts = drafts, accepted
}

// finish is the only place that a Finish comes from.
func (j *Join) finish(now time.Time, f Finish) {
	if j.phase == asking {
		j.do(Withdraw{})
	}
	hadAttempt := j.phase == running
	j.served = f.Err == nil
	j.phase = finished
	j.wins(now)
	j.released = !hadAttempt
	j.do(f)
	if f.Err != nil {
		j.closeAll()
	} else {
		j.lingerAt = now.Add(j.p.Linger)
	}
	j.release()
}

// release gives the last attempt's share of the workers back once its streams are
// closed.
func (j *Join) release() {
	if j.released {
		return
	}
	for _, s := range j.open {
		if s.Attempt == j.number {
			return
		}
	}
	j.released = true
	if j.served && j.attempt.gaps.Count() > 0 {
		j.do(Tell{routing.TokensReceived{ID: j.id(), Gaps: j.attempt.gaps}})
	}
	j.do(Release{Attempt: j.number, ID: j.id(), Hedge: j.attempt.hedge, Served: j.served, Tokens: len(j.tokens) - j.attempt.base, Decoding: j.decoding()})
}

// decoding is how long the sequence was in the decode worker's batch.
func (j *Join) decoding() time.Duration {
	from := j.attempt.admittedAt
	if from.Before(j.attempt.firstAt) { // one worker did all, and computed the prompt before
		from = j.attempt.firstAt
	}
	return max(j.last.Sub(from), 0)
}

// broken fails an attempt whose worker does not keep to the protocol.
func (j *Join) broken(now time.Time, side Side, what string) {
	j.fail(now, side, status.Errorf(codes.Internal, "worker %s %s", j.attempt.worker(side).ID, what))
}

// fail ends an attempt because a worker failed, and asks for another.
func (j *Join) fail(now time.Time, side Side, err error) {
	if reason, ok := j.naturalEnd(); ok && len(j.tokens) > j.attempt.base && !j.p.MeanState {
		// All tokens are there; only the worker's Ended is not.
		j.ends(now, reason)
		j.closeAll()
		return
	}
	failures := j.blame(side, err)
	failure := failures[0]
	final, confirmed := error(nil), j.confirmed(now, failure.Worker, err)
	switch {
	case confirmed:
		final, failures = err, nil // nobody is to blame
	case j.attempt.suspected: // a guess spends no attempt
	case j.attempt.outwaited && !j.accepted:
		final = &routing.Refusal{Code: codes.ResourceExhausted, Reason: api.ReasonQueueTimeout,
			Message: status.Convert(err).Message() + "; retry later", RetryAfter: max(j.p.Silence.Queue/2, time.Second)}
	case failure.Busy || failure.Leaves:
		if j.refused++; j.refused > j.p.MaxRefusals {
			refusal := &routing.Refusal{Code: codes.ResourceExhausted, Reason: api.ReasonQueueTimeout,
				Message:    fmt.Sprintf("workers refused %d times because they were full or leaving, last %s: %s; retry later", j.refused, failure.Worker.ID, status.Convert(err).Message()),
				RetryAfter: max(failure.RetryAfter, time.Second)}
			if failure.Leaves {
				refusal.Code, refusal.Reason = codes.Unavailable, api.ReasonWorkerLost
			}
			final = refusal
		}
	default:
		j.failed++
		if failure.Lost && !failure.Replaced {
			j.lostConnection = failure.Worker
		}
		switch {
		case j.failed < j.p.MaxAttempts:
		case failure.Unreached != (routing.Ref{}):
			refusal := routing.Unreachable(failure.Worker.ID, failure.Unreached.ID, failure.Why, 0)
			final = &refusal
		case notFinite(err):
			// Not Unavailable: it may be this request that the model has no answer to.
			final = &routing.Refusal{Code: codes.DataLoss, Reason: api.ReasonNotFinite,
				Message: fmt.Sprintf("workers computed infinite or NaN values in %d attempts, last %s: %s; if other requests fail the same way, check the workers named in the logs and the model's files", j.failed, failure.Worker.ID, status.Convert(err).Message())}
		default:
			final = &routing.Refusal{Code: codes.Unavailable, Reason: api.ReasonWorkerLost,
				Message:    fmt.Sprintf("workers failed in %d attempts, last %s: %s; retry later", j.failed, failure.Worker.ID, status.Convert(err).Message()),
				RetryAfter: time.Second}
		}
	}
	j.closeAll()
	j.released = true
	goesOn := j.rival != nil && !confirmed
	for i := range failures {
		failures[i].Beside = goesOn
	}
	release := Release{Attempt: j.number, ID: j.id(), Failures: failures, Hedge: j.attempt.hedge, Beside: goesOn}
	if len(failures) > 0 {
		release.Err = err
	}
	j.do(release)
	if final != nil && !goesOn {
		j.phase = idle // the attempt is over
		j.finish(now, Finish{Err: final})
		return
	}
	if !failure.Busy {
		j.failures = append(j.failures, failures...)
		j.remember(side, failure, err)
	}
	if goesOn {
		j.goOn()
		return
	}
	j.retries++
	j.attempts++
	j.number = j.attempts
	j.ask(now, !failure.Busy && !failure.Leaves)
}

// notFinite reports that a worker ended its stream since it could draw no token.
func notFinite(err error) bool {
	reason := rpc.Reason(err)
	return reason == api.ReasonNotFinite || reason == api.ReasonKVNotFinite
}

// blame says which workers a failure speaks against, the one that it came from
// first.
func (j *Join) blame(side Side, err error) []routing.Failure {
	code, reason := status.Code(err), rpc.Reason(err)
	failed, other := j.attempt.Decode, j.attempt.Prefill
	if side == Prefill {
		failed, other = other, failed
	}
	first := routing.Failure{Worker: failed, Silent: reason == api.ReasonWorkerSilent, Verdict: code == codes.InvalidArgument}
	switch {
	case j.attempt.suspected && side == Prefill && j.attempt.first:
		// Prefill sends if decode takes it: either may hang, so neither is blamed.
		return []routing.Failure{{Worker: failed}, {Worker: other}}
	case j.attempt.suspected:
		// It is only a guess: the routing core waits for progress.
	case j.attempt.outwaited:
		first.Busy = true
	case reason == api.ReasonTransferUnreachable && side == Prefill:
		first.Unreached, first.Why = other, status.Convert(err).Message()
	case reason == api.ReasonKVNotFinite && side == Decode && j.attempt.disaggregated:
		// Mostly prefill computed that KV, or whoever filled decode's cache.
		return []routing.Failure{first, {Worker: other}}
	case reason == api.ReasonTransferFailed || reason == api.ReasonTransferRefused,
		first.Silent && side == Prefill && j.attempt.first: // it sends, if decode takes it
		// Either end may be the cause, and both answer: another pair is better,
		// but the same one may do.
		return []routing.Failure{first, {Worker: other}}
	case code == codes.ResourceExhausted && reason != "" && !j.attempt.began(side):
		first.Busy = true
		first.RetryAfter, _ = rpc.RetryAfter(err)
	case reason == api.ReasonWrongEpoch:
		first.Gone, first.Lost, first.Replaced = true, true, true
	case code == codes.Unavailable:
		first.Gone, first.Leaves, first.Connection = true, reason == api.ReasonWorkerDraining, j.attempt.connections[side]
		first.Lost = reason == "" // the transport's word, not the worker's
	}
	return []routing.Failure{first}
}
