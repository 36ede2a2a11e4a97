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
	if task == nil {
		return none, rpc.InvalidArgument("task", "is missing")
	}
	if task.GetModelDigest() != spec.Digest {
		return none, rpc.Error(codes.FailedPrecondition, api.ReasonModelMismatch,
			fmt.Sprintf("this worker serves %s with digest %s, but the request is for digest %s: wait until the router has the worker's new record", spec.Name, spec.Digest, task.GetModelDigest()), 0)
	}
	ids := task.GetTokenIds()
	if len(ids) == 0 {
		return none, rpc.InvalidArgument("task.token_ids", "is empty")
	}
	if len(ids) >= spec.ContextTokens {
		return none, rpc.InvalidArgument("task.token_ids", fmt.Sprintf("%d tokens leave no room in a context of %d", len(ids), spec.ContextTokens))
	}
	tokens := make([]int32, len(ids))
	for i, id := range ids {
		if int64(id) >= int64(spec.VocabSize) {
			return none, rpc.InvalidArgument("task.token_ids", fmt.Sprintf("token %d at index %d is outside the vocabulary of %d", id, i, spec.VocabSize))
		}
		tokens[i] = int32(id)
	}
	if task.GetGenerated() >= uint32(len(ids)) {
		return none, rpc.InvalidArgument("task.generated", fmt.Sprintf("%d of %d tokens cannot have been generated", task.GetGenerated(), len(ids)))
	}
	if task.GetMaxTokens() > math.MaxInt32 {
		return none, rpc.InvalidArgument("task.max_tokens", fmt.Sprintf("%d is above %d", task.GetMaxTokens(), math.MaxInt32))
	}
	if task.GetMaxTokens() <= task.GetGenerated() {
		return none, rpc.InvalidArgument("task.max_tokens", fmt.Sprintf("%d is not above the %d generated already", task.GetMaxTokens(), task.GetGenerated()))
	}
	if n := len(task.GetStopTokenIds()); n > maxStopTokens {
		return none, rpc.InvalidArgument("task.stop_token_ids", fmt.Sprintf("%d are more than %d", n, maxStopTokens))
	}
	if n := len(task.GetEnvelope().GetCacheSalt()); n > maxSaltBytes {
		return none, rpc.InvalidArgument("task.envelope.cache_salt", fmt.Sprintf("%d bytes are more than %d", n, maxSaltBytes))
	}
	if n := len(task.GetEnvelope().GetTenant()); n > maxTenantBytes {
		return none, rpc.InvalidArgument("task.envelope.tenant", fmt.Sprintf("%d bytes are more than %d", n, maxTenantBytes))
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
	if task.GetMinTokens() > math.MaxInt32 {
		return none, rpc.InvalidArgument("task.min_tokens", fmt.Sprintf("%d is above %d", task.GetMinTokens(), math.MaxInt32))
	}
	if task.GetMinTokens() > 0 && len(stop) > 0 {
		params.MinTokens, params.Ends = int(task.GetMinTokens()), stop
	}
	if n := task.GetLogprobs(); n > sampler.MaxTopLogprobs {
		return none, rpc.InvalidArgument("task.logprobs", fmt.Sprintf("%d is more than %d", n, sampler.MaxTopLogprobs))
	}
	var pooling *engine.Pooling
	if task.GetPool() {
		if task.GetMaxTokens() != task.GetGenerated()+1 {
			return none, rpc.InvalidArgument("task.max_tokens", "with pool, one token has to be generated")
		}
		pooling = engine.NewPooling(spec.HiddenSize)
	}
	if n := task.GetPromptLogprobs(); n > sampler.MaxTopLogprobs {
		return none, rpc.InvalidArgument("task.prompt_logprobs", fmt.Sprintf("%d is more than %d", n, sampler.MaxTopLogprobs))
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
