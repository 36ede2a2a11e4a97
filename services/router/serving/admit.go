package serving

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/quota"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/clienterr"
	"github.com/tandem-serving/tandem/services/router/preprocess"
)

// admitted is what a request was admitted with.
type admitted struct {
	owner  string        // its tenant, where callers are asked who they are
	charge *quota.Charge // nil: its tenant has no limits
}

// OwnerOf is the tenant of who calls; empty: callers are not asked who they are.
func OwnerOf(ctx context.Context) string {
	if p := auth.FromContext(ctx); p != nil {
		return p.Tenant
	}
	return ""
}

// admit makes a request its caller's, and counts it against the limits of that. The error is a
// status.
func (s *Requests) admit(ctx context.Context, sharing Sharing, q *inferencev1.GenerateRequest, p *preprocess.Plan) (by admitted, err error) {
	caller := auth.FromContext(ctx)
	if caller == nil {
		return by, nil
	}
	by.owner = caller.Tenant
	if most := caller.Limits.MaxPriority; int64(q.GetPriority()) > most {
		s.metrics.limited.WithLabelValues("priority").Inc()
		return by, rpc.InvalidArgument("priority", fmt.Sprintf("puts it before what its tenant may ask for: at most %d, or over HTTP at least %d", most, -most))
	}
	if caller.Limits == (quota.Limits{}) {
		return by, nil
	}
	if err := bound(caller.Limits, q, p); err != nil {
		s.metrics.limited.WithLabelValues("size").Inc()
		return by, err
	}
	by.charge, err = s.charge(ctx, caller, int64(sharing.promptTokens(p)+p.MaxTokens))
	return by, err
}

// charge counts a request with so many tokens against the limits of its caller. The error is a
// status.
func (s *Requests) charge(ctx context.Context, caller *auth.Principal, mostTokens int64) (*quota.Charge, error) {
	charge, err := s.deps.Quota.Admit(ctx, caller.Tenant, caller.Limits, mostTokens)
	if err == nil {
		return charge, nil
	}
	if mostTokens > 0 {
		s.Count(ctx) // to find how many it asks for took as long as with others
	}
	if err := s.exceeded(caller, err); err != nil {
		return nil, err
	}
	return nil, clienterr.Gone(ctx)
}

// Check is why a call of a caller that needs so much would be refused now, as a status: a limit of
// its tenant is used up, or the field asks for more than that ever allows. Nothing need be spent on
// it then.
func (s *Requests) Check(ctx context.Context, need quota.Need, field string) error {
	caller := auth.FromContext(ctx)
	if caller == nil || caller.Limits == (quota.Limits{}) {
		return nil
	}
	switch most := caller.Limits; {
	case most.RequestsPerMinute > 0 && need.Requests > most.RequestsPerMinute:
		return rpc.InvalidArgument(field, fmt.Sprintf("asks for %d requests, more than the %d a minute that its tenant may make", need.Requests, most.RequestsPerMinute))
	case most.Concurrency > 0 && need.AtOnce > most.Concurrency:
		return rpc.InvalidArgument(field, fmt.Sprintf("asks for %d requests at a time, more than the %d that its tenant may have: split the call", need.AtOnce, most.Concurrency))
	case most.TokensPerMinute > 0 && need.Tokens > most.TokensPerMinute:
		return rpc.InvalidArgument(field, fmt.Sprintf("asks for more tokens than the %d a minute that its tenant may use: split the call, or limit the length of answers", most.TokensPerMinute))
	}
	err := s.exceeded(caller, s.deps.Quota.Over(caller.Tenant, caller.Limits, need))
	if err != nil && need.Tokens > 0 {
		s.Count(ctx) // to find how many it asks for took as long as with others
	}
	return err
}

const (
	// freeResumes is how often a request can be resumed for nothing: as many clients may read it.
	// What goes on with it more often than connections break is a request each time.
	freeResumes = maxReaders
	// missesOver is how many requests over its limit a tenant may have and still resume some. Only
	// what is refused counts over the limit, such as to resume what there is not.
	missesOver = 8
)

// CheckResume is why nothing of a caller is resumed now, as a status: it asked for too much that there
// is not. Its limits are no reason: what is resumed was counted when it began.
func (s *Requests) CheckResume(ctx context.Context) error { return s.past(ctx, missesOver) }

// CheckCall is why a call of a caller that takes no tokens would be refused now, as a status.
func (s *Requests) CheckCall(ctx context.Context) error { return s.past(ctx, 0) }

func (s *Requests) past(ctx context.Context, over int64) error {
	caller := auth.FromContext(ctx)
	if caller == nil || caller.Limits == (quota.Limits{}) {
		return nil
	}
	return s.exceeded(caller, s.deps.Quota.Past(caller.Tenant, caller.Limits, over))
}

// resumedAgain counts one more time that a request is resumed.
func (s *Requests) resumedAgain(ctx context.Context, r *request) error {
	caller := auth.FromContext(ctx)
	if caller == nil || caller.Limits == (quota.Limits{}) || r.resumed.Add(1) <= freeResumes {
		return nil
	}
	err := s.exceeded(caller, s.deps.Quota.Spend(caller.Tenant, caller.Limits))
	if err != nil {
		s.Count(ctx) // to find it took something
	}
	return err
}

// Count counts a request that was refused for what it asks, or that no worker had to compute
// anything for, without tokens: it has cost its router something.
func (s *Requests) Count(ctx context.Context) {
	if caller := auth.FromContext(ctx); caller != nil && caller.Limits != (quota.Limits{}) {
		s.deps.Quota.Count(caller.Tenant)
	}
}

// exceeded is an error of the limiter as a status; nil if it is not that a limit is used up.
func (s *Requests) exceeded(caller *auth.Principal, err error) error {
	exceeded, is := errors.AsType[*quota.Exceeded](err)
	if !is {
		return nil
	}
	s.metrics.limited.WithLabelValues(exceeded.What).Inc()
	return rpc.Error(codes.ResourceExhausted, api.ReasonTenantQuota, fmt.Sprintf("tenant %q: %v", caller.Tenant, exceeded), exceeded.RetryAfter)
}

// CountCall counts a call that no worker computes anything for, such as Tokenize, as a request
// without tokens of its caller's tenant. The error is a status; without one, the call has to call
// end.
func (s *Requests) CountCall(ctx context.Context) (end func(), err error) {
	caller := auth.FromContext(ctx)
	if caller == nil || caller.Limits == (quota.Limits{}) {
		return func() {}, nil
	}
	charge, err := s.charge(ctx, caller, 0)
	return func() { charge.Done(0) }, err
}

// bound holds one request to the limits of its tenant. One that does not say how long its answer
// may be has what they leave.
func bound(limits quota.Limits, q *inferencev1.GenerateRequest, p *preprocess.Plan) error {
	prompt := int64(len(p.Tokens))
	if limits.PromptTokens > 0 && prompt > limits.PromptTokens {
		return rpc.InvalidArgument("prompt", fmt.Sprintf("has %d tokens, more than the %d that its tenant may send", prompt, limits.PromptTokens))
	}
	most := limits.MostAnswerTokens(prompt, int64(p.MaxTokens))
	switch {
	case most < 1:
		return rpc.InvalidArgument("prompt", fmt.Sprintf("has %d tokens, and its tenant has %d a minute", prompt, limits.TokensPerMinute))
	case q.MaxTokens != nil && most < int64(p.MaxTokens):
		return rpc.InvalidArgument("max_tokens", fmt.Sprintf("%d is more than its tenant may have: at most %d", p.MaxTokens, most))
	}
	p.MaxTokens = int(most)
	return nil
}

// chargeUsed charges its tenant the tokens that a request used, which has ended with err: none if it
// was refused or workers failed before the first token, but the prompt if its client gave it up, or asked
// for what cannot be, after a worker took it, since that may have computed nearly all of it. told: somebody
// reads the request, and gets err.
func (r *request) chargeUsed(err error, told bool) {
	if r.charge == nil {
		return
	}
	used := 0
	if n := r.loop.Core.Tokens(); n > 0 || r.taken && byClient(err) {
		used = r.sharing.promptTokens(r.plan) + n
	}
	r.charge.Done(int64(used))
	if told && status.Code(err) == codes.InvalidArgument {
		r.charge.TakeBack() // the server that answers counts it, like all that are refused for what they ask
	}
}

// byClient says whether a request ended with err because its client left, does not read, gave it too
// little time, or asked for what left no token.
func byClient(err error) bool {
	switch rpc.Reason(err) {
	case api.ReasonClientGone, api.ReasonDeadline, api.ReasonNotRead, api.ReasonUnread, api.ReasonInvalidField:
		return true
	}
	return false
}
