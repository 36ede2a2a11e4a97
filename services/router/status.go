package router

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/internal/fleet"
)

// Reasons of the router's own errors, beside those of internal/fleet.
const (
	reasonModelNotFound   = "MODEL_NOT_FOUND"
	reasonRequestNotFound = "REQUEST_NOT_FOUND"
	reasonWorkerNotFound  = "WORKER_NOT_FOUND"
	reasonShutdown        = "ROUTER_SHUTDOWN"
	reasonCancelled       = "CLIENT_GONE"
	reasonInternal        = "INTERNAL"
	reasonPolicyNotKept   = "POLICY_NOT_KEPT"
)

// toStatus makes the status that a client gets. It is the only place where the
// state machines' refusals become one.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	var refusal *fleet.Refusal
	if errors.As(err, &refusal) {
		if refusal.Field != "" {
			return rpc.InvalidArgument(refusal.Field, refusal.Message)
		}
		return rpc.Error(refusal.Code, refusal.Reason, refusal.Message, refusal.RetryAfter)
	}
	if field, ok := strings.CutPrefix(rpc.Field(err), "task."); ok {
		// Of the task that the router made of the request for a worker.
		_, problem, _ := strings.Cut(status.Convert(err).Message(), ": ")
		return rpc.InvalidArgument(strings.TrimPrefix(field, "envelope."), problem)
	}
	s, ok := status.FromError(err)
	switch {
	case !ok:
		return rpc.Error(codes.Internal, reasonInternal, err.Error(), 0)
	case rpc.Reason(err) == "" && s.Code() == codes.DeadlineExceeded:
		return deadlineExceeded()
	case rpc.Reason(err) == "":
		return rpc.Error(s.Code(), reasonInternal, s.Message(), 0)
	}
	return s.Err()
}

func deadlineExceeded() error {
	return rpc.Error(codes.DeadlineExceeded, fleet.ReasonDeadline, "the request's deadline came; the tokens so far stand", 0)
}

// gone is the status of a request whose client is gone.
func gone(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return deadlineExceeded()
	}
	return rpc.Error(codes.Canceled, reasonCancelled, "the client is gone", 0)
}

// codeName is a status code's name as the specification spells it.
func codeName(err error) string { return code.Code(status.Code(err)).String() }
