// Package preprocess checks a request and turns it into a plan: it fills in defaults, renders
// the conversation and tokenizes the prompt. It knows the models, but no workers.
//
// The router and the binary, which checks aliases, import it. It starts no goroutines.
package preprocess

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// Bounds of the lists of requests, as inference.proto states them.
const (
	MaxStops      = 16
	MaxStopTokens = 64
)

// Other bounds, as inference.proto states them.
const (
	maxStopBytes    = 256
	maxPriority     = 100
	maxResumable    = 5 * time.Minute
	maxSaltBytes    = 256
	maxTenantBytes  = 128
	maxTextBytes    = 1 << 20
	maxDetokenizeID = 1 << 20
	maxDetokenized  = 4 << 20 // bytes
)

// Plan is a request that was checked: every default filled in, the prompt in
// tokens.
type Plan struct {
	Model          *Model
	Tokens         []int32 // the prompt
	MaxTokens      int     // to generate; prompt and these fit into the context
	MinTokens      int     // before which nothing ends it but MaxTokens
	StopTokens     []int32 // that end it, the model's own included
	Stops          []string
	Sampling       *inferencev1.Sampling         // every field set
	Logprobs       *uint32                       // nil: say nothing
	PromptLogprobs *uint32                       // nil: say nothing of the prompt
	Structured     *inferencev1.StructuredOutput // nil: the output may be anything
	Ignored        []string                      // keywords of schemas that the output is not held to, as fields of the request
	ToolCalls      string                        // the format of calls; empty: there are none
	Shown          []int32                       // special tokens that the text has
	Envelope       *inferencev1.Envelope         // without a request id
	Pool           bool                          // its hidden states are wanted
	Resumable      time.Duration                 // after its client is gone; 0: not
	Arrived        time.Time
	Tokenized      time.Time
	Deadline       time.Time
}

// Plan checks a request completely before anything is spent on it; the prompt
// is tokenized last. rendered is the prompt that an earlier plan made of the request's conversation; nil:
// there is none. Its errors are statuses that name the field.
func (s *Models) Plan(ctx context.Context, arrived time.Time, q *inferencev1.GenerateRequest, rendered []uint32) (*Plan, error) {
	m, err := s.Model(q.GetModel())
	if err != nil {
		return nil, err
	}
	p := &Plan{Model: m, Arrived: arrived, Stops: q.GetStop(), Logprobs: q.Logprobs, Resumable: q.GetResumableFor().AsDuration()}
	if p.Sampling, err = samplingOf(q.GetSampling(), m.sampling, m.Spec); err != nil {
		return nil, err
	}
	if n := q.GetLogprobs(); n > sampler.MaxTopLogprobs {
		return nil, rpc.InvalidArgument("logprobs", fmt.Sprintf("%d is outside 0 to %d", n, sampler.MaxTopLogprobs))
	}
	switch n := q.GetPromptLogprobs(); {
	case n > sampler.MaxTopLogprobs:
		return nil, rpc.InvalidArgument("prompt_logprobs", fmt.Sprintf("%d is outside 0 to %d", n, sampler.MaxTopLogprobs))
	case q.PromptLogprobs != nil && q.GetMode() == inferencev1.Mode_MODE_DISAGGREGATED:
		return nil, rpc.InvalidArgument("prompt_logprobs", "are computed by one worker that serves the whole request: leave out mode disaggregated")
	}
	p.PromptLogprobs = q.PromptLogprobs
	if err := checkStops(q.GetStop()); err != nil {
		return nil, err
	}
	if p.StopTokens, err = stopTokensOf(q, m); err != nil {
		return nil, err
	}
	// To compile a form, and to render and tokenize the prompt, takes of the request's time as well.
	p.Deadline = arrived.Add(s.maxRequestTime)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(p.Deadline) {
		p.Deadline = deadline
	}
	ctx, cancel := context.WithDeadline(ctx, p.Deadline)
	defer cancel()
	if p.Envelope, err = envelopeOf(ctx, q); err != nil {
		return nil, err
	}
	if err := s.hold(ctx, p, q); err != nil {
		return nil, err
	}
	if p.PromptLogprobs != nil {
		p.Envelope.Mode = inferencev1.Mode_MODE_AGGREGATED
	}
	if err := CheckDuration("resumable_for", q.GetResumableFor()); err != nil {
		return nil, err
	}
	if p.Resumable > maxResumable {
		return nil, rpc.InvalidArgument("resumable_for", fmt.Sprintf("%s is more than %s", p.Resumable, maxResumable))
	}
	if q.MaxTokens != nil && (q.GetMaxTokens() == 0 || q.GetMaxTokens() > math.MaxInt32) {
		return nil, rpc.InvalidArgument("max_tokens", fmt.Sprintf("%d is outside 1 to %d", q.GetMaxTokens(), math.MaxInt32))
	}
	if p.Tokens, err = promptOf(ctx, q, m, rendered); err != nil {
		return nil, err
	}
	p.MaxTokens = m.Spec.ContextTokens - len(p.Tokens)
	if q.MaxTokens != nil {
		if int(q.GetMaxTokens()) > p.MaxTokens {
			return nil, tooMany(len(p.Tokens), int(q.GetMaxTokens()), m.Spec.ContextTokens)
		}
		p.MaxTokens = int(q.GetMaxTokens())
	}
	if int64(q.GetMinTokens()) > int64(p.MaxTokens) {
		return nil, rpc.InvalidArgument("min_tokens", fmt.Sprintf("%d is more than the %d tokens that there can be", q.GetMinTokens(), p.MaxTokens))
	}
	p.MinTokens = int(q.GetMinTokens())
	p.Tokenized = time.Now()
	return p, nil
}

func checkStops(stops []string) error {
	if len(stops) > MaxStops {
		return rpc.InvalidArgument("stop", fmt.Sprintf("%d texts are more than %d", len(stops), MaxStops))
	}
	for i, s := range stops {
		field := fmt.Sprintf("stop[%d]", i)
		switch {
		case s == "":
			return rpc.InvalidArgument(field, "is empty")
		case len(s) > maxStopBytes:
			return rpc.InvalidArgument(field, fmt.Sprintf("has %d bytes, more than %d", len(s), maxStopBytes))
		case !utf8.ValidString(s):
			return rpc.InvalidArgument(field, "is not valid UTF-8")
		}
	}
	return nil
}

// stopTokensOf is the tokens that end the request, the model's own included.
func stopTokensOf(q *inferencev1.GenerateRequest, m *Model) ([]int32, error) {
	if n := len(q.GetStopTokenIds()); n > MaxStopTokens {
		return nil, rpc.InvalidArgument("stop_token_ids", fmt.Sprintf("%d tokens are more than %d", n, MaxStopTokens))
	}
	var out []int32
	if !q.GetIgnoreEos() {
		out = append(out, m.Spec.EOS...)
		if q.GetConversation() != nil {
			out = append(out, m.endTurn...)
		}
	}
	given, err := tokensOf(q.GetStopTokenIds(), "stop_token_ids", m)
	return append(out, given...), err
}

// envelopeOf is what workers are told of a request. Its tenant is who calls, if callers are asked who they are.
func envelopeOf(ctx context.Context, q *inferencev1.GenerateRequest) (*inferencev1.Envelope, error) {
	e := &inferencev1.Envelope{
		Tenant: cmp.Or(q.GetTenant(), "default"), Priority: q.GetPriority(), Slo: q.GetSlo(),
		Mode: cmp.Or(q.GetMode(), inferencev1.Mode_MODE_AUTO), CacheSalt: q.GetCacheSalt(),
	}
	if caller := auth.FromContext(ctx); caller != nil {
		e.Tenant = caller.Tenant
	}
	if _, known := inferencev1.Mode_name[int32(e.Mode)]; !known {
		return nil, rpc.InvalidArgument("mode", fmt.Sprintf("%d is no mode", e.Mode))
	}
	if len(e.Tenant) > maxTenantBytes || !utf8.ValidString(e.Tenant) {
		return nil, rpc.InvalidArgument("tenant", fmt.Sprintf("has to be valid UTF-8 of at most %d bytes", maxTenantBytes))
	}
	if len(e.CacheSalt) > maxSaltBytes || !utf8.ValidString(e.CacheSalt) {
		return nil, rpc.InvalidArgument("cache_salt", fmt.Sprintf("has to be valid UTF-8 of at most %d bytes", maxSaltBytes))
	}
	if e.Priority < -maxPriority || e.Priority > maxPriority {
		return nil, rpc.InvalidArgument("priority", fmt.Sprintf("%d is outside %d to %d", e.Priority, -maxPriority, maxPriority))
	}
	if class := q.GetSlo().GetClass(); class != "" && !slices.Contains(routing.ClassNames(), class) {
		return nil, rpc.InvalidArgument("slo.class", fmt.Sprintf("%q is no class: the classes are %s", clienterr.Shorten(class), strings.Join(routing.ClassNames(), ", ")))
	}
	if err := CheckDuration("slo.ttft", q.GetSlo().GetTtft()); err != nil {
		return nil, err
	}
	return e, CheckDuration("slo.tpot", q.GetSlo().GetTpot())
}

// CheckDuration refuses a duration of a field that is negative or none; nil is fine.
func CheckDuration(field string, d *durationpb.Duration) error {
	switch {
	case d == nil:
		return nil
	case d.CheckValid() != nil:
		return rpc.InvalidArgument(field, "is no valid duration")
	case d.AsDuration() < 0:
		return rpc.InvalidArgument(field, fmt.Sprintf("%s is negative", d.AsDuration()))
	}
	return nil
}

// TopLogprobs is how many of the likeliest tokens the request wants to see.
func (p *Plan) TopLogprobs() int {
	if p.Logprobs == nil {
		return 0
	}
	return int(*p.Logprobs)
}

// TopPromptLogprobs is TopLogprobs for tokens of the prompt.
func (p *Plan) TopPromptLogprobs() int {
	if p.PromptLogprobs == nil {
		return 0
	}
	return int(*p.PromptLogprobs)
}
