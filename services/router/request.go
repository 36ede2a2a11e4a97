package router

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/internal/fleet"
	"github.com/tandem-serving/tandem/services/router/internal/joining"
)

// request drives one request's life. Its goroutine lives until the client has
// its answer and every worker stream is closed.
type request struct {
	service *Service
	plan    *plan
	key     string // names it to the policy: clients may use an id again
	log     *slog.Logger
	spans   *requestTrace // nil: not sampled
	record  *record
	events  *eventLog

	ctx         context.Context // ends at the deadline, and with the goroutine
	cancel      context.CancelFunc
	join        *joining.Join
	inbox       chan joining.Event // from worker streams, which wait for it
	answers     chan answer        // from the policy, at most one
	modelDigest string             // of the workers of the present try
	mode        inferencev1.Mode   // of the present try
	tokenAt     time.Time          // when the last token came
	aborts      chan error         // from clients and Stop, the first counts
	streams     map[joining.Stream]context.CancelFunc

	mu      sync.Mutex
	readers int
	expiry  *time.Timer // while nobody reads
	ended   bool
}

func newRequest(s *Service, p *plan, number uint64) *request {
	ctx, cancel := context.WithDeadline(rpc.WithRequestID(context.Background(), p.id), p.deadline)
	return &request{
		service: s,
		plan:    p,
		key:     p.id + "#" + strconv.FormatUint(number, 10),
		log:     s.log.With(slog.String("request_id", p.id)),
		spans:   p.spans,
		record:  s.records.add(p.id, p.arrived),
		events:  newEventLog(),
		ctx:     ctx,
		cancel:  cancel,
		join: joining.New(joining.Params{
			Arrived:      p.arrived,
			Tokenized:    p.tokenized,
			PromptTokens: len(p.tokens),
			MaxTokens:    p.maxTokens,
			StopTokens:   p.stopTokens,
			Text:         newText(p.model.Tokenizer, p.tokens, p.stops),
			Logprobs:     p.logprobs != nil,
			TopLogprobs:  p.topLogprobs(),
			MaxAttempts:  s.config.MaxAttempts,
			MaxRefusals:  maxRefusals,
			Linger:       linger,
			Silence: joining.Silence{
				Queue:  s.config.MaxQueueWait,
				Prompt: s.config.PromptSilence,
				Tokens: s.config.WorkerSilence,
			},
		}),
		inbox:   make(chan joining.Event, 16),
		answers: make(chan answer, 1),
		aborts:  make(chan error, 1),
		streams: make(map[joining.Stream]context.CancelFunc),
	}
}

const (
	// maxRefusals is how often workers may refuse one request for want of room;
	// between two of them the policy waits ever longer.
	maxRefusals = 64
	// linger is how long a worker stream may take to end by itself once the
	// request is over.
	linger = time.Second
)

// run is the request's goroutine.
func (r *request) run() {
	defer r.cancel()
	defer r.spans.released(nil)
	r.spans.planned(r.plan)
	r.handle(joining.Start{})
	deadline := r.ctx.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for !r.join.Done() {
		var due <-chan time.Time
		if next, ok := r.join.Next(); ok {
			timer.Reset(time.Until(next))
			due = timer.C
		}
		select {
		case event := <-r.inbox:
			r.handle(event)
		case a := <-r.answers:
			if a.decision != nil {
				r.modelDigest, r.mode = a.modelDigest, a.decision.GetMode()
				r.record.decided(a.decision)
				r.spans.decided(a.decision)
				r.service.metrics.dispatched(a.decision, a.fallback)
			}
			r.handle(a.event)
		case err := <-r.aborts:
			r.handle(joining.Abort{Err: err})
		case <-deadline:
			deadline = nil
			r.handle(joining.Abort{Err: deadlineExceeded()})
		case <-due:
			r.handle(joining.Tick{})
		}
	}
}

// abort ends the request from any goroutine. It does not wait.
func (r *request) abort(err error) {
	select {
	case r.aborts <- err:
	default: // one is on its way
	}
}

func (r *request) handle(event joining.Event) {
	if c, ok := event.(joining.Closed); ok {
		r.streams[c.Stream]()
		delete(r.streams, c.Stream)
	}
	now := time.Now()
	for _, action := range r.join.Handle(now, event) {
		switch a := action.(type) {
		case joining.Ask:
			r.service.dispatcher.ask(r.ask(a), r.answers)
		case joining.Withdraw:
			r.service.dispatcher.withdraw(r.key)
		case joining.OpenDecode:
			r.spans.began(a.Stream.Attempt, len(a.Generated))
			r.openDecode(a)
		case joining.OpenPrefill:
			r.openPrefill(a)
		case joining.Close:
			r.streams[a.Stream]()
		case joining.PromptDone:
			r.service.dispatcher.handle(fleet.PromptDone{ID: r.key})
		case joining.Fetched:
			r.service.dispatcher.handle(a.Fetched)
			r.service.metrics.fetchedFrom(a.Verdict)
		case joining.Release:
			r.service.dispatcher.handle(fleet.Ended{ID: r.key, Failures: a.Failures})
			r.spans.released(a.Err)
			if a.Err != nil {
				r.record.failed(a.Failures, a.Err)
				r.service.metrics.retried(a.Failures, a.Err)
				r.log.Warn("workers failed in request", slog.Int("attempt", a.Attempt), slog.Any("error", a.Err))
			}
		case joining.Accept:
			r.events.append(&inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_Accepted{Accepted: &inferencev1.Accepted{
				RequestId:    r.plan.id,
				Model:        r.plan.model.Spec.Name,
				PromptTokens: uint32(len(r.plan.tokens)),
				Seed:         r.plan.sampling.GetSeed(),
			}}})
		case joining.Deliver:
			r.events.append(&inferencev1.GenerateEvent{Offset: uint64(a.Offset), Event: &inferencev1.GenerateEvent_Tokens{Tokens: &inferencev1.TokenDelta{
				TokenIds: []uint32{uint32(a.Token)},
				Text:     a.Text,
				Logprobs: logprobsOf(a, r.plan.model.Tokenizer),
			}}})
			r.service.metrics.token(r.mode, now, r.tokenAt)
			r.tokenAt = now
		case joining.Finish:
			r.finish(now, a)
		}
	}
}

// ask is what the policy has to know of the request's next try.
func (r *request) ask(a joining.Ask) fleet.Request {
	p := r.plan
	tokens := slices.Concat(p.tokens, a.Generated)
	return fleet.Request{
		ID:          r.key,
		Attempt:     a.Attempt,
		Tenant:      p.envelope.GetTenant(),
		Model:       p.model.Spec.Name,
		ModelDigest: p.model.Spec.Digest,
		Mode:        p.envelope.GetMode(),
		Priority:    p.envelope.GetPriority(),
		Arrived:     p.arrived,
		Deadline:    p.deadline,
		Tokens:      len(tokens),
		MaxNew:      p.maxTokens - len(a.Generated),
		TTFT:        p.envelope.GetSlo().GetTtft().AsDuration(),
		TPOT:        p.envelope.GetSlo().GetTpot().AsDuration(),
		Failures:    a.Failures,
		Lineage:     a.Lineage,
		Hashes: func(modelDigest, class string, blockTokens int) []kvcache.Hash {
			return kvcache.BlockHashes(kvcache.RootHash(modelDigest, class, p.envelope.GetCacheSalt()), tokens, blockTokens)
		},
	}
}

func (r *request) finish(now time.Time, f joining.Finish) {
	err := toStatus(f.Err)
	r.mu.Lock()
	r.ended = true
	if r.expiry != nil {
		r.expiry.Stop()
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
	r.record.ended(now, err, f)
	r.service.metrics.ended(now, err, f)
	r.service.ended(r)
	r.events.end(err)
	r.spans.finished(f, err)
	r.log.Debug("request ended", slog.String("status", codeName(err)), slog.Int("tokens", r.join.Tokens()))
}

// attach counts a reader.
func (r *request) attach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readers++
	if r.expiry != nil {
		r.expiry.Stop()
		r.expiry = nil
	}
}

// detach says that a reader is gone; with the last one the request goes on only
// for as long as it can be resumed.
func (r *request) detach(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readers--
	if r.readers > 0 || r.ended {
		return
	}
	if r.plan.resumable == 0 {
		r.abort(why)
		return
	}
	r.expiry = time.AfterFunc(r.plan.resumable, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.readers == 0 {
			r.abort(rpc.Error(codes.Canceled, reasonCancelled, "the client did not come back in time", 0))
		}
	})
}

// envelopeFor is the envelope of one try.
func (r *request) envelopeFor(attempt int) *inferencev1.Envelope {
	e := proto.CloneOf(r.plan.envelope)
	e.Attempt = uint32(attempt)
	return e
}
