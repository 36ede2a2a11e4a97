package joining

import (
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// What a worker claims ends no request. What it says of itself, that it is full, leaves or
// is another one, is believed: it can only lose by that. What it says of the request is
// not, since the router has checked the request before and a worker may be anybody:
//
//	INVALID_ARGUMENT   is final when another worker says it too, of the same field. Until
//	                   then the one that said it has failed, and is not asked again. Where
//	                   there is no other it is the only opinion, and the client's.
//	CONSTRAINT_EFFORT  is final once the attempt has a token: who draws tokens could as well
//	                   end the request by them. Elsewhere the output would only have the same
//	                   work once more. Before that it is a claim like any other.
//	DEADLINE_EXCEEDED  is final when the router's own clock says so.
//	any other status   is a failure of the worker, never the end.
//	the finish reason  is what the tokens bear out: a stop token, or as many as asked for.
//
// When others prove a claim wrong, by serving the request, the routing core is told.

// claim is what a worker said when it failed an attempt.
type claim struct {
	worker routing.Ref
	began  time.Time // the attempt
	err    error
}

// deadlineSlack is how much before the request's deadline, by our clock, a worker may
// say that it has come: its clock is another.
const deadlineSlack = 100 * time.Millisecond

// confirmed reports that what a worker says of the request is so.
func (j *Join) confirmed(now time.Time, by routing.Ref, err error) bool {
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		return !j.p.Deadline.IsZero() && !now.Before(j.p.Deadline.Add(-deadlineSlack))
	case codes.InvalidArgument:
		if j.attempt.first && rpc.Reason(err) == api.ReasonConstraintEffort {
			return true
		}
		return slices.ContainsFunc(j.claims, func(c claim) bool {
			return c.worker.ID != by.ID && status.Code(c.err) == codes.InvalidArgument && rpc.Field(c.err) == rpc.Field(err)
		})
	}
	return false
}

// onlyClaim is the status of a request that the policy refuses with err: the claim of a
// worker that the request is wrong, if there is no other worker to confirm it.
func (j *Join) onlyClaim(err error) error {
	refusal, is := errors.AsType[*routing.Refusal](err)
	if !is || refusal.Reason != api.ReasonWorkerLost && refusal.Reason != api.ReasonNoWorkers && refusal.Reason != api.ReasonRetryBudget {
		return err
	}
	for _, c := range j.claims {
		if status.Code(c.err) == codes.InvalidArgument {
			return c.err
		}
	}
	return err
}

// remember keeps what a worker that failed claims of the request; that it is silent,
// leaves or is another one is no such claim. That a connection broke is kept, since a
// worker may claim it: the routing core knows better.
func (j *Join) remember(side Side, failure routing.Failure, err error) {
	if failure.Silent || failure.Leaves || failure.Replaced || failure.Unreached != (routing.Ref{}) || j.attempt.suspected {
		return
	}
	j.claims = append(j.claims, claim{j.attempt.worker(side), j.attempt.at, err})
}

// contradict tells of workers whose claims the present attempt proves wrong.
func (j *Join) contradict() {
	for _, c := range j.claims {
		if c.worker != j.attempt.Decode && c.worker != j.attempt.Prefill {
			j.do(Tell{routing.Contradicted{Worker: c.worker, Began: c.began, Why: status.Convert(c.err).Message()}})
		}
	}
	j.claims = nil
}

// began reports that a worker began to compute in this attempt: it was not too full.
func (t *attempt) began(side Side) bool {
	if side == Prefill {
		return t.started || t.first
	}
	return t.admitted
}
