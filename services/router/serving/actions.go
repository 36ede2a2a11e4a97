package serving

import (
	"log/slog"
	"time"

	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// apply carries out the core's actions. It is called under the loop's lock, which comes
// before all others.
func (r *request) apply(now time.Time, actions []joining.Action) {
	for _, action := range actions {
		switch a := action.(type) {
		case joining.Ask:
			r.ask(a)
		case joining.AskHedge:
			r.askHedge(a)
		case joining.Withdraw:
			r.requests.deps.Dispatcher.Withdraw(r.key)
		case joining.OpenDecode:
			r.began()
			r.spans.began(a.Stream.Attempt, len(a.Generated), r.attempts[a.Stream.Attempt].decision)
			r.openDecode(a)
		case joining.OpenPrefill:
			r.openPrefill(a)
		case joining.Close:
			r.streams[a.Stream]()
		case joining.Tell:
			r.tell(a.Event)
		case joining.CheckProgress:
			r.loop.Step(joining.Progressed{Stream: a.Stream, At: r.requests.deps.Dispatcher.Progressed(a.Worker)})
		case joining.Release:
			r.released(a)
		case joining.Accept:
			r.accepted = true
			r.events.append(&inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_Accepted{Accepted: &inferencev1.Accepted{
				RequestId:         r.id,
				Model:             r.plan.Model.Spec.Name,
				PromptTokens:      uint32(len(r.plan.Tokens)),
				Seed:              r.plan.Sampling.GetSeed(),
				SystemFingerprint: r.version.Fingerprint(),
				Secret:            r.secret,
				ToolCallFormat:    r.plan.ToolCalls,
				Ignored:           r.plan.Ignored,
			}}})
			if r.plan.PromptLogprobs != nil && len(r.plan.Tokens) == 1 { // no worker sends log probabilities for a single token
				r.events.append(promptEvent(joining.DeliverPrompt{Offset: 1}, r.plan))
			}
		case *joining.Deliver:
			if r.token == nil {
				r.token = newTokenEvent()
			}
			r.token.set(a, logprobsOf(a, r.plan.Model.Tokenizer, r.plan.Shown))
			if kept := r.events.append(&r.token.event); kept {
				r.token = nil
			}
			r.requests.metrics.token(r.running.mode, now, r.tokenAt)
			r.tokenAt = now
		case joining.DeliverPrompt:
			r.events.append(promptEvent(a, r.plan))
		case joining.Finish:
			r.finish(now, a)
		}
	}
}

// tell hands an event to the routing core.
func (r *request) tell(event routing.Event) {
	r.requests.deps.Dispatcher.Handle(event)
	switch e := event.(type) {
	case routing.Taken:
		r.taken = true
	case routing.Contradicted:
		r.requests.metrics.wronged.Inc()
		r.log.Warn("worker failed a request that others serve", slog.String("worker", e.Worker.ID), slog.String("error", e.Why))
	case routing.Fetched:
		r.requests.metrics.fetchedFrom(e.Verdict)
	}
}

func (r *request) finish(now time.Time, f joining.Finish) {
	err := clienterr.Status(f.Err)
	r.mu.Lock()
	r.ended, r.meanState = true, f.MeanState
	told := r.readers > 0
	if r.expiry != nil {
		r.expiry.Stop()
	}
	if r.readers == 0 {
		r.wasRead()
	} else if r.lags = r.events.lags(); r.lags {
		r.requests.deps.Dispatcher.Handle(routing.Unread{Tenant: r.tenant})
	}
	r.mu.Unlock()
	if err == nil {
		r.events.append(&inferencev1.GenerateEvent{
			Offset: uint64(f.Usage.GetCompletionTokens()),
			Event: &inferencev1.GenerateEvent_Finished{Finished: &inferencev1.Finished{
				Reason: f.Reason, Text: f.Text, Stop: f.Stop, Usage: f.Usage, Route: f.Route, Timings: f.Timings,
			}},
		})
	}
	r.record.Ended(now, err, f, r.running.decided())
	r.requests.metrics.ended(now, err, f)
	r.chargeUsed(err, told)
	r.requests.keep(r)
	r.events.end(err)
	r.spans.finished(f, err)
	r.log.Debug("request ended", slog.String("status", rpc.CodeName(status.Code(err))), slog.Int("tokens", r.loop.Core.Tokens()))
}
