package serving

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/quota"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/clienterr"
	"github.com/tandem-serving/tandem/services/router/preprocess"
)

const (
	// MaxInputs is how many texts one call may embed, as OpenAI has it, and inputsAtOnce how many of
	// them are requests at a time.
	MaxInputs    = 2048
	inputsAtOnce = 8
)

// Embed embeds texts: each is a request, which one worker computes as a prompt and whose hidden
// states it gives back. All run in one version of the model, that of the first: vectors of different
// weights cannot be compared. If that is not served any more, and its workers have left, all begin once
// more. It fails with the first of them, as a gRPC status, and ends the others then.
func (s *Requests) Embed(ctx context.Context, c Caller, q *inferencev1.EmbedRequest) (*inferencev1.EmbedResponse, error) {
	inputs := q.GetInputs()
	if n := len(inputs); n == 0 || n > MaxInputs {
		return nil, rpc.InvalidArgument("inputs", fmt.Sprintf("has %d texts: give 1 to %d", n, MaxInputs))
	}
	model := q.GetModel()
	if m, err := s.deps.Models.Model(model); err == nil { // else the first request says why not
		model = m.Spec.Name
		release, err := s.memory.takeVectors(len(inputs), m.Spec.HiddenSize)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	atOnce := min(inputsAtOnce, len(inputs), max(s.deps.Dispatcher.TenantLimit(), 1))
	if caller := auth.FromContext(ctx); caller != nil {
		if caller.Limits.Concurrency > 0 {
			atOnce = min(atOnce, int(caller.Limits.Concurrency))
		}
		need := quota.Need{Requests: int64(len(inputs)), AtOnce: int64(atOnce)}
		if err := s.Check(ctx, need, "inputs"); err != nil {
			return nil, err
		}
		if caller.Limits.TokensPerMinute > 0 {
			var err error
			if inputs, err = s.tokenized(ctx, q, need); err != nil {
				return nil, err
			}
		}
	}
	c.pool = true
	r, version, err := s.embedAll(ctx, c, q, inputs, atOnce)
	if status.Code(err) == codes.Unavailable && version != (routing.Version{}) && !slices.Contains(s.deps.Dispatcher.Served(model), version) {
		r, _, err = s.embedAll(ctx, c, q, inputs, atOnce)
	}
	return r, err
}

// embedAll embeds the texts of a call in one version, which it returns: zero if it failed before that was
// known.
func (s *Requests) embedAll(ctx context.Context, c Caller, q *inferencev1.EmbedRequest, inputs []*inferencev1.EmbedInput, atOnce int) (*inferencev1.EmbedResponse, routing.Version, error) {
	parent := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &inferencev1.EmbedResponse{Embeddings: make([]*inferencev1.Embedding, len(inputs))}
	var wait sync.WaitGroup
	var mu sync.Mutex // of what follows, and r
	next, failed := 0, error(nil)
	var version routing.Version // of the first input, once known is closed
	known := make(chan struct{})
	for range atOnce {
		wait.Go(func() {
			for ctx.Err() == nil {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= len(inputs) {
					return
				}
				caller := c
				if i == 0 {
					caller.sent = func(v routing.Version) {
						version = v
						close(known)
					}
				} else {
					select {
					case <-known:
						caller.version = version
					case <-ctx.Done():
						return
					}
				}
				embedding, accepted, err := s.embed(numbered(ctx, i), caller, q, inputs[i])
				mu.Lock()
				switch {
				case err == nil:
					r.Embeddings[i], r.Model, r.SystemFingerprint = embedding, accepted.GetModel(), accepted.GetSystemFingerprint()
				case failed == nil:
					failed = atInput(i, err)
					cancel(clienterr.OtherFailed(err))
				}
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	if parent.Err() != nil {
		failed = clienterr.Gone(parent)
	}
	if failed == nil {
		return r, version, nil
	}
	select {
	case <-known:
		return nil, version, failed
	default: // it may be about to be set
		return nil, routing.Version{}, failed
	}
}

// tokenized is the texts of a call in tokens, unless they need more than their tenant may use.
func (s *Requests) tokenized(ctx context.Context, q *inferencev1.EmbedRequest, need quota.Need) ([]*inferencev1.EmbedInput, error) {
	out := make([]*inferencev1.EmbedInput, len(q.GetInputs()))
	for i, input := range q.GetInputs() {
		p, _, err := s.Plan(ctx, embedding(q, input))
		if err != nil {
			return nil, atInput(i, err)
		}
		need.Tokens += int64(len(p.Tokens)) + 1
		if err := s.Check(ctx, need, "inputs"); err != nil {
			return nil, err
		}
		out[i] = &inferencev1.EmbedInput{Input: &inferencev1.EmbedInput_TokenIds{TokenIds: &inferencev1.TokenIds{Ids: preprocess.IDs(p.Tokens)}}}
	}
	return out, nil
}

// embedding is the request that embeds one text.
func embedding(q *inferencev1.EmbedRequest, input *inferencev1.EmbedInput) *inferencev1.GenerateRequest {
	asked := &inferencev1.GenerateRequest{
		Model: q.GetModel(), Tenant: q.GetTenant(), Priority: q.GetPriority(), Slo: q.GetSlo(), NoSpecialTokens: q.GetNoSpecialTokens(),
		MaxTokens: proto.Uint32(1), Sampling: &inferencev1.Sampling{Temperature: proto.Float32(0)},
		Mode: inferencev1.Mode_MODE_AGGREGATED, // the KV is of no use to anybody
	}
	switch in := input.GetInput().(type) {
	case *inferencev1.EmbedInput_Text:
		asked.Input = &inferencev1.GenerateRequest_Prompt{Prompt: in.Text}
	case *inferencev1.EmbedInput_TokenIds:
		asked.Input = &inferencev1.GenerateRequest_TokenIds{TokenIds: in.TokenIds}
	}
	return asked
}

// embed embeds one text.
func (s *Requests) embed(ctx context.Context, c Caller, q *inferencev1.EmbedRequest, input *inferencev1.EmbedInput) (*inferencev1.Embedding, *inferencev1.Accepted, error) {
	r, err := s.begin(ctx, &c, embedding(q, input))
	if err != nil {
		return nil, nil, err
	}
	var accepted *inferencev1.Accepted
	if err := follow(ctx, r.events, r.detach, 0, func(event *inferencev1.GenerateEvent) error {
		if a := event.GetAccepted(); a != nil {
			accepted = a
		}
		return nil
	}, nil); err != nil {
		return nil, nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	values, err := normalized(r.meanState, r.plan.Model.Spec.HiddenSize)
	return &inferencev1.Embedding{Values: values, Tokens: uint32(len(r.plan.Tokens))}, accepted, err
}

// numbered is a context with the request's id of its i-th input.
func numbered(ctx context.Context, i int) context.Context {
	if id := rpc.RequestID(ctx); id != "" && i > 0 {
		return rpc.WithRequestID(ctx, rpc.Suffixed(id, "/"+strconv.Itoa(i)))
	}
	return ctx
}

// normalized is a vector divided by its Euclidean length.
func normalized(vector []float32, size int) ([]float32, error) {
	sum := 0.0
	for _, x := range vector {
		square := float64(x) * float64(x)
		sum += square
	}
	length := math.Sqrt(sum)
	if len(vector) != size || length == 0 || math.IsInf(length, 0) || math.IsNaN(length) {
		return nil, rpc.Errorf(codes.Unavailable, api.ReasonWorkerLost, "the worker gave no hidden states of the text: send the request again, and if that fails too, update the workers")
	}
	out := make([]float32, len(vector))
	for i, x := range vector {
		out[i] = float32(float64(x) / length)
	}
	return out, nil
}

// atInput gives a field of a request the name that it has among the inputs.
func atInput(i int, err error) error {
	field, name := rpc.Field(err), fmt.Sprintf("inputs[%d]", i)
	switch {
	case field == "prompt":
		name += ".text"
	case strings.HasPrefix(field, "token_ids"):
		name += "." + field
	case field == "max_tokens": // which the client did not ask for
		return rpc.InvalidArgument(name, "needs more KV than any worker has; shorten it")
	default:
		return err
	}
	problem := strings.TrimPrefix(status.Convert(err).Message(), field+": ")
	if rpc.Reason(err) == api.ReasonContextLengthExceeded {
		return rpc.ContextLength(name, problem)
	}
	return rpc.InvalidArgument(name, problem)
}
