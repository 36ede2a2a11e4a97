package serving

import (
	"log/slog"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// attempt is one choice of workers for the request, as the policy decided it.
type attempt struct {
	mode     inferencev1.Mode
	decision *controlv1.Decision // owned by the record
}

// decided is the attempt's decision; nil without an attempt.
func (a *attempt) decided() *controlv1.Decision {
	if a == nil {
		return nil
	}
	return a.decision
}

// began records an attempt that begins: the core has taken up the policy's answer.
func (r *request) began() {
	e := r.answer
	r.answer = joining.Dispatched{}
	r.version, r.running = e.Version, &attempt{e.Decision.GetMode(), e.Decision}
	r.attempts[e.Attempt] = r.running
	if r.sent != nil {
		r.sent(r.version)
		r.sent = nil
	}
	r.record.Decided(e.Decision)
	r.requests.metrics.dispatched(e.Decision, e.Fallback)
}

// released records an attempt that is over.
func (r *request) released(a joining.Release) {
	r.requests.deps.Dispatcher.Handle(routing.Ended{ID: a.ID, Failures: a.Failures, Served: a.Served, Tokens: a.Tokens, Decoding: a.Decoding, Lost: a.Late()})
	r.spans.released(a)
	r.requests.metrics.hedged(a)
	of := r.attempts[a.Attempt]
	if of == nil { // it had not begun
		return
	}
	if a.Err != nil {
		r.taken = r.taken && (a.Beside || status.Code(a.Err) == codes.InvalidArgument)
		r.record.Failed(of.decision, a.Failures, a.Err)
		r.requests.metrics.retried(a.Failures, a.Err)
		r.log.Warn("workers failed in request", slog.Int("attempt", a.Attempt),
			slog.String("code", status.Code(a.Err).String()), slog.String("error", status.Convert(a.Err).Message()))
	}
	if a.Late() {
		r.record.Lost(of.decision)
	}
	if !a.Beside {
		return // it stays the running one: finish reads its decision
	}
	delete(r.attempts, a.Attempt)
	for _, other := range r.attempts {
		r.running = other
	}
}
