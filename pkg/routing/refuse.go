package fleet

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// misses says whether the request's objective is out of reach on the workers
// chosen. A worker that has measured nothing yet is given the benefit of the
// doubt.
func (f *Fleet) misses(now time.Time, r *Request, decode, prefill *option) (Refusal, bool) {
	if r.Attempt > 0 {
		return Refusal{}, false
	}
	first := decode
	if prefill != nil {
		first = prefill
	}
	if r.TTFT > 0 {
		elapsed := now.Sub(r.Arrived)
		predicted := elapsed
		var queue time.Duration
		if first.step.Samples > 0 {
			queue = milliseconds(first.queueMs)
			predicted += queue + milliseconds(first.prefillMs)
		}
		if predicted > r.TTFT {
			return Refusal{codes.ResourceExhausted, ReasonSLO, "",
				fmt.Sprintf("predicted time to first token %s exceeds slo.ttft %s; retry later or ask for less",
					predicted.Round(time.Microsecond), r.TTFT), max(queue, time.Second)}, true
		}
	}
	if r.TPOT > 0 && decode.step.Samples > 0 {
		if predicted := milliseconds(decode.tpotMs); predicted > r.TPOT {
			return Refusal{codes.ResourceExhausted, ReasonSLO, "",
				fmt.Sprintf("predicted time per output token %s exceeds slo.tpot %s; retry later or ask for less",
					predicted.Round(time.Microsecond), r.TPOT), time.Second}, true
		}
	}
	return Refusal{}, false
}

func milliseconds(ms float64) time.Duration {
	return time.Duration(min(ms, 1e12) * float64(time.Millisecond))
}

// refusal is the answer if e cannot be served because of what o says.
func (f *Fleet) refusal(e *entry, o outlook, what string) Refusal {
	if o.verdict == never {
		return Refusal{Code: codes.InvalidArgument, Reason: ReasonNeverFits, Field: "max_tokens",
			Message: fmt.Sprintf("prompt and completion take %d tokens of KV, and the largest %s holds %d; ask for fewer tokens",
				positions(&e.request, e.pool), what, o.largestTokens)}
	}
	if o.verdict == severed {
		var again time.Duration
		if outage := f.paths[o.broken]; outage != nil {
			again = outage.until.Sub(f.now)
		}
		return Unreachable(o.broken.from.ID, o.broken.to.ID, o.whyBroken, again)
	}
	r := f.nobody(e, what)
	r.Message += " (" + o.why + ")"
	return r
}

// nobody is the answer when no worker could ever take e.
func (f *Fleet) nobody(e *entry, what string) Refusal {
	r := Refusal{Code: codes.Unavailable, Reason: ReasonNoWorkers, RetryAfter: time.Second,
		Message: fmt.Sprintf("no %s serves model %q; retry when one has registered", what, e.request.Model)}
	if e.request.Attempt > 0 {
		r.Reason = ReasonWorkerLost
		r.Message = fmt.Sprintf("a worker failed and there is no other %s for model %q; retry when one has registered", what, e.request.Model)
	}
	return r
}

func roleName(role controlv1.Role) string {
	if role == controlv1.Role_ROLE_PREFILL {
		return "prefill"
	}
	return "decode"
}

func (f *Fleet) expired(now time.Time, e *entry) Refusal {
	waited := now.Sub(e.enqueued).Round(time.Millisecond)
	switch {
	case !e.request.Deadline.IsZero() && !now.Before(e.request.Deadline):
		return Refusal{Code: codes.DeadlineExceeded, Reason: ReasonDeadline,
			Message: fmt.Sprintf("the request's deadline came after %s in the queue", waited)}
	case !e.noWorkerSince.IsZero():
		return f.nobody(e, roleName(e.pool)+" worker")
	case e.request.TTFT > 0 && e.request.Attempt == 0 && now.Sub(e.request.Arrived) >= e.request.TTFT:
		return Refusal{codes.ResourceExhausted, ReasonSLO, "",
			fmt.Sprintf("no %s worker had room within slo.ttft %s; retry later or ask for less", roleName(e.pool), e.request.TTFT), time.Second}
	}
	return Refusal{codes.ResourceExhausted, ReasonQueueTimeout, "",
		fmt.Sprintf("no %s worker had room within %s; retry later", roleName(e.pool), waited), max(waited/2, time.Second)}
}
