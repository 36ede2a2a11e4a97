package router

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/openai"
)

// Bounds of requests, as inference.proto states them.
const (
	maxStops        = 16
	maxStopBytes    = 256
	maxStopTokens   = 64
	maxPriority     = 100
	maxResumable    = 5 * time.Minute
	maxSaltBytes    = 256
	maxTenantBytes  = 128
	maxTextBytes    = 1 << 20
	maxDetokenizeID = 1 << 20
)

// plan is a request that was checked: every default filled in, the prompt in
// tokens.
type plan struct {
	id         string
	renames    bool // the id may be changed if it is taken
	model      Model
	tokens     []int32 // the prompt
	maxTokens  int     // to generate; prompt and these fit into the context
	stopTokens []int32
	stops      []string
	sampling   *inferencev1.Sampling // every field set
	logprobs   *uint32               // nil: say nothing
	envelope   *inferencev1.Envelope
	resumable  time.Duration
	arrived    time.Time
	tokenized  time.Time
	deadline   time.Time
	spans      *requestTrace // nil: not sampled
}

// planOf checks a request completely before anything is spent on it; the prompt
// is tokenized last. Its errors are statuses that name the field.
func (s *Service) planOf(ctx context.Context, arrived time.Time, id string, q *inferencev1.GenerateRequest) (*plan, error) {
	m, err := s.model(q.GetModel())
	if err != nil {
		return nil, err
	}
	// Over HTTP proxies and clients send an id again with what they try again, and get
	// the one that counts with the answer.
	p := &plan{id: id, renames: openai.Route(ctx) != "", model: m, arrived: arrived, stops: q.GetStop(), logprobs: q.Logprobs, resumable: q.GetResumableFor().AsDuration()}
	if p.sampling, err = samplingOf(q.GetSampling(), s.sampling[m.Spec.Name], m.Spec); err != nil {
		return nil, err
	}
	if err := checkLogprobs(q); err != nil {
		return nil, err
	}
	if err := checkStops(q.GetStop()); err != nil {
		return nil, err
	}
	if p.stopTokens, err = stopTokensOf(q, m); err != nil {
		return nil, err
	}
	if p.envelope, err = envelopeOf(id, q); err != nil {
		return nil, err
	}
	if err := checkDuration("resumable_for", q.GetResumableFor()); err != nil {
		return nil, err
	}
	if p.resumable > maxResumable {
		return nil, rpc.InvalidArgument("resumable_for", fmt.Sprintf("%s is more than %s", p.resumable, maxResumable))
	}
	if q.MaxTokens != nil && (q.GetMaxTokens() == 0 || q.GetMaxTokens() > math.MaxInt32) {
		return nil, rpc.InvalidArgument("max_tokens", fmt.Sprintf("%d is outside 1 to %d", q.GetMaxTokens(), math.MaxInt32))
	}
	// To render and tokenize the prompt takes of the request's time as well.
	p.deadline = arrived.Add(s.config.MaxRequestTime)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(p.deadline) {
		p.deadline = deadline
	}
	ctx, cancel := context.WithDeadline(ctx, p.deadline)
	defer cancel()
	if p.tokens, err = promptOf(ctx, q, m); err != nil {
		return nil, err
	}
	p.maxTokens = m.Spec.ContextTokens - len(p.tokens)
	if q.MaxTokens != nil {
		p.maxTokens = min(p.maxTokens, int(q.GetMaxTokens()))
	}
	p.tokenized = time.Now()
	return p, nil
}

// shorten keeps what a client sent from filling messages and logs.
func shorten(text string) string {
	const most = 64
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

func checkStops(stops []string) error {
	if len(stops) > maxStops {
		return rpc.InvalidArgument("stop", fmt.Sprintf("%d texts are more than %d", len(stops), maxStops))
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
func stopTokensOf(q *inferencev1.GenerateRequest, m Model) ([]int32, error) {
	if n := len(q.GetStopTokenIds()); n > maxStopTokens {
		return nil, rpc.InvalidArgument("stop_token_ids", fmt.Sprintf("%d tokens are more than %d", n, maxStopTokens))
	}
	var out []int32
	if !q.GetIgnoreEos() {
		out = append(out, m.Spec.EOS...)
	}
	for i, id := range q.GetStopTokenIds() {
		if uint64(id) >= uint64(m.Spec.VocabSize) {
			return nil, rpc.InvalidArgument(fmt.Sprintf("stop_token_ids[%d]", i), outside(id, m))
		}
		out = append(out, int32(id))
	}
	return out, nil
}

func outside(id uint32, m Model) string {
	return fmt.Sprintf("token %d is outside the vocabulary of %d", id, m.Spec.VocabSize)
}

func envelopeOf(id string, q *inferencev1.GenerateRequest) (*inferencev1.Envelope, error) {
	e := &inferencev1.Envelope{
		RequestId: id, Tenant: q.GetTenant(), Priority: q.GetPriority(), Slo: q.GetSlo(), Mode: q.GetMode(), CacheSalt: q.GetCacheSalt(),
	}
	if e.Tenant == "" {
		e.Tenant = "default"
	}
	if e.Mode == inferencev1.Mode_MODE_UNSPECIFIED {
		e.Mode = inferencev1.Mode_MODE_AUTO
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
	if err := checkDuration("slo.ttft", q.GetSlo().GetTtft()); err != nil {
		return nil, err
	}
	return e, checkDuration("slo.tpot", q.GetSlo().GetTpot())
}

func checkDuration(field string, d *durationpb.Duration) error {
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
