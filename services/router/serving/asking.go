package serving

import (
	"slices"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// ask asks the policy for the workers of the next attempt.
func (r *request) ask(a joining.Ask) {
	clear(r.attempts)
	tokens := slices.Concat(r.plan.Tokens, a.Generated)
	wanted := r.policyRequest(r.key, a.Attempt, tokens, a.Failures, a.Version)
	if wanted.Retry = a.Retry; a.Retry {
		r.requests.metrics.retries.Inc()
	}
	r.requests.deps.Dispatcher.Ask(wanted, r.findable(tokens), r.plan.Envelope.GetCacheSalt(), r.answers)
	if r.asked {
		r.requests.wait.Go(r.awaitAnswer)
	}
	r.asked = true
}

// askHedge asks the policy for the workers of a hedged attempt. The policy answers at once.
func (r *request) askHedge(a joining.AskHedge) {
	tokens := slices.Concat(r.plan.Tokens, a.Generated)
	wanted := r.policyRequest(a.ID, a.Attempt, tokens, a.Failures, a.Version)
	answer := r.requests.deps.Dispatcher.Hedge(routing.Hedge{Request: wanted, Late: a.Late, After: a.After, Again: a.Again}, r.findable(tokens), r.plan.Envelope.GetCacheSalt())
	switch e := answer.(type) {
	case joining.Dispatched:
		r.answer = e
	case joining.Refused:
		r.requests.metrics.hedgeRefused(e.Err)
	}
	r.loop.Step(answer)
}

// policyRequest is what the policy needs to know about an attempt.
func (r *request) policyRequest(id string, attempt int, tokens []int32, failures []routing.Failure, version routing.Version) routing.Request {
	p := r.plan
	var holder routing.Ref
	if len(tokens) == len(p.Tokens) { // it has the prompt, not what was generated elsewhere
		holder = r.holder
	}
	return routing.Request{
		ID:       id,
		Attempt:  attempt,
		Tenant:   p.Envelope.GetTenant(),
		Model:    p.Model.Spec.Name,
		Mode:     p.Envelope.GetMode(),
		Priority: p.Envelope.GetPriority(),
		Arrived:  r.arrived,
		Deadline: p.Deadline,
		Tokens:   len(tokens),
		Holder:   holder,
		MaxNew:   p.MaxTokens - (len(tokens) - len(p.Tokens)),
		TTFT:     p.Envelope.GetSlo().GetTtft().AsDuration(),
		TPOT:     p.Envelope.GetSlo().GetTpot().AsDuration(),
		Class:    p.Envelope.GetSlo().GetClass(),
		Failures: failures,
		Version:  version,
	}
}
