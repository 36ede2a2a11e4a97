package worker

import (
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc/codes"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// What one task may carry: far more than the router lets through.
const (
	maxStopTokens  = 1024
	maxSaltBytes   = 1024
	maxTenantBytes = 1024
)

// ParseTask checks what a router sent against the model that is served here and
// makes a request of it, without ID and Kind. Its errors are gRPC statuses.
func ParseTask(task *workerv1.Task, spec model.Spec, deadline time.Time) (scheduler.Request, error) {
	none := scheduler.Request{}
	if err := checkTask(task, spec); err != nil {
		return none, err
	}
	tokens := make([]int32, len(task.GetTokenIds()))
	for i, id := range task.GetTokenIds() {
		if int64(id) >= int64(spec.VocabSize) {
			return none, rpc.InvalidArgument("task.token_ids", fmt.Sprintf("token %d at index %d is outside the vocabulary of %d", id, i, spec.VocabSize))
		}
		tokens[i] = int32(id)
	}
	stop := make([]int32, 0, len(task.GetStopTokenIds()))
	for _, id := range task.GetStopTokenIds() {
		if int64(id) < int64(spec.VocabSize) {
			stop = append(stop, int32(id))
		}
	}
	params, err := sampler.Parse(task.GetSampling(), spec.VocabSize)
	if err != nil {
		field, problem := "task.sampling", err.Error()
		if f, ok := errors.AsType[*sampler.FieldError](err); ok {
			field, problem = field+"."+f.Field, f.Problem
		}
		return none, rpc.InvalidArgument(field, problem)
	}
	if task.GetMinTokens() > 0 && len(stop) > 0 {
		params.MinTokens, params.Ends = int(task.GetMinTokens()), stop
	}
	var pooling *engine.Pooling
	if task.GetPool() {
		pooling = engine.NewPooling(spec.HiddenSize)
	}
	return scheduler.Request{
		Pooling:        pooling,
		PromptLogprobs: task.PromptLogprobs != nil, TopPromptLogprobs: int(task.GetPromptLogprobs()),

		Tokens:      tokens,
		Generated:   int(task.GetGenerated()),
		MaxTokens:   int(task.GetMaxTokens()),
		Stop:        stop,
		Sampling:    params,
		Logprobs:    task.Logprobs != nil,
		TopLogprobs: int(task.GetLogprobs()),
		Salt:        task.GetEnvelope().GetCacheSalt(),
		Priority:    task.GetEnvelope().GetPriority(),
		FirstIn:     time.Duration(max(task.GetFirstTokenNs(), 0)),
		EachIn:      max(task.GetEnvelope().GetSlo().GetTpot().AsDuration(), 0),
		Deadline:    deadline,
	}, nil
}

// checkTask checks what takes no look at each token.
func checkTask(task *workerv1.Task, spec model.Spec) error {
	if task == nil {
		return rpc.InvalidArgument("task", "is missing")
	}
	if task.GetModelDigest() != spec.Digest {
		return rpc.Error(codes.FailedPrecondition, api.ReasonModelMismatch,
			fmt.Sprintf("this worker serves %s with digest %s, but the request is for digest %s: wait until the router has the worker's new record", spec.Name, spec.Digest, task.GetModelDigest()), 0)
	}
	wrong := func(field, problem string, args ...any) error {
		return rpc.InvalidArgument("task."+field, fmt.Sprintf(problem, args...))
	}
	tokens, generated, most, e := len(task.GetTokenIds()), task.GetGenerated(), task.GetMaxTokens(), task.GetEnvelope()
	switch {
	case tokens == 0:
		return wrong("token_ids", "is empty")
	case tokens >= spec.ContextTokens:
		return wrong("token_ids", "%d tokens leave no room in a context of %d", tokens, spec.ContextTokens)
	case generated >= uint32(tokens):
		return wrong("generated", "%d of %d tokens cannot have been generated", generated, tokens)
	case most > math.MaxInt32:
		return wrong("max_tokens", "%d is above %d", most, math.MaxInt32)
	case most <= generated:
		return wrong("max_tokens", "%d is not above the %d generated already", most, generated)
	case len(task.GetStopTokenIds()) > maxStopTokens:
		return wrong("stop_token_ids", "%d are more than %d", len(task.GetStopTokenIds()), maxStopTokens)
	case len(e.GetCacheSalt()) > maxSaltBytes:
		return wrong("envelope.cache_salt", "%d bytes are more than %d", len(e.GetCacheSalt()), maxSaltBytes)
	case len(e.GetTenant()) > maxTenantBytes:
		return wrong("envelope.tenant", "%d bytes are more than %d", len(e.GetTenant()), maxTenantBytes)
	case task.GetMinTokens() > math.MaxInt32:
		return wrong("min_tokens", "%d is above %d", task.GetMinTokens(), math.MaxInt32)
	case task.GetLogprobs() > sampler.MaxTopLogprobs:
		return wrong("logprobs", "%d is more than %d", task.GetLogprobs(), sampler.MaxTopLogprobs)
	case task.GetPool() && most != generated+1:
		return wrong("max_tokens", "with pool, one token has to be generated")
	case task.GetPromptLogprobs() > sampler.MaxTopLogprobs:
		return wrong("prompt_logprobs", "%d is more than %d", task.GetPromptLogprobs(), sampler.MaxTopLogprobs)
	}
	return nil
}

// RefusedError is the status for a request that the scheduler did not take.
func RefusedError(reason scheduler.RefuseReason) error {
	switch reason {
	case scheduler.Draining:
		return rpc.Error(codes.Unavailable, api.ReasonWorkerDraining, "this worker is leaving: send the request to another one", time.Second)
	case scheduler.NeverFits:
		return rpc.InvalidArgument("task.token_ids", "the request needs more KV blocks than this worker has: give it more, or ask for fewer tokens")
	case scheduler.Invalid:
		return rpc.InvalidArgument("task", "contradicts itself")
	default:
		return rpc.Error(codes.ResourceExhausted, api.ReasonQueueFull, "too many sequences wait on this worker: try another one, or later", 100*time.Millisecond)
	}
}

// FailedError is the status for a sequence that failed.
func FailedError(err error) error {
	if spoilt, is := errors.AsType[*NotFiniteError](err); is {
		reason := api.ReasonNotFinite
		if spoilt.Origin != "" {
			reason = api.ReasonKVNotFinite
		}
		return rpc.Error(codes.DataLoss, reason, fmt.Sprintf("no token can be drawn: %v", spoilt), 0)
	}
	if errors.Is(err, scheduler.ErrNoTokenAllowed) {
		return rpc.InvalidArgument("structured_output", err.Error()+": allow the end, or texts that the model's tokens can spell, there; or, if the form can be read in very many ways, say the same in fewer")
	}
	if errors.Is(err, scheduler.ErrConstraintEffort) {
		return rpc.ConstraintEffort("structured_output", err.Error()+": say the same in a form that can be read in fewer ways, or ask for fewer tokens")
	}
	return rpc.Error(codes.Unavailable, api.ReasonEngineFailed, fmt.Sprintf("the engine failed: %v", err), 0)
}
