package workerdriver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// Grammars gives the grammars for the vocabulary of the worker's model. It may take as long as
// it takes to read that, the first time.
type Grammars func() (*grammar.Cache, error)

// constrain holds a request to the form that its task asks for, which counts as used until ctx ends. Its errors
// are gRPC statuses.
func (g Grammars) constrain(ctx context.Context, request *scheduler.Request, task *workerv1.Task) error {
	source := task.GetStructuredOutput()
	if source == nil {
		return nil
	}
	if g == nil {
		return rpc.Error(codes.FailedPrecondition, api.ReasonNoVocabulary, "this worker does not know the texts of its tokens, so it can hold no output to a form", 0)
	}
	cache, err := g()
	if err != nil {
		return rpc.Error(codes.FailedPrecondition, api.ReasonNoVocabulary, fmt.Sprintf("the texts of the model's tokens cannot be read: %v", err), 0)
	}
	form, release, err := cache.Get(ctx, task.GetEnvelope().GetTenant(), source)
	switch {
	case err == nil:
		context.AfterFunc(ctx, release)
	case errors.Is(err, grammar.ErrBusy):
		return rpc.Error(codes.ResourceExhausted, api.ReasonQueueFull, err.Error(), time.Second)
	case ctx.Err() != nil:
		return status.FromContextError(err).Err()
	default:
		field, problem := "form", err.Error()
		if wrong, is := errors.AsType[*grammar.Error](err); is {
			field, problem = wrong.Field, wrong.Problem
		}
		return rpc.InvalidArgument("structured_output."+field, problem)
	}
	request.Constraint = form.Constrain(request.Stop)
	return nil
}
