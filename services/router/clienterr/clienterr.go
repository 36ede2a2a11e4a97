// Package clienterr makes the gRPC statuses that callers of the router get. Only here does a
// refusal of pkg/routing become a status.
//
// The router's packages import it. It starts no goroutines.
package clienterr

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// Status is an error as the status that a client gets; nil stays nil.
func Status(err error) error {
	if err == nil {
		return nil
	}
	if refusal, ok := errors.AsType[*routing.Refusal](err); ok {
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
		return rpc.Error(codes.Internal, api.ReasonInternal, err.Error(), 0)
	case rpc.Reason(err) == "" && s.Code() == codes.DeadlineExceeded:
		return DeadlineExceeded()
	case rpc.Reason(err) == "":
		return rpc.Error(s.Code(), api.ReasonInternal, s.Message(), 0)
	}
	return s.Err()
}

// DeadlineExceeded is the status of a request whose deadline came.
func DeadlineExceeded() error {
	return rpc.Error(codes.DeadlineExceeded, api.ReasonDeadline, "the request's deadline passed; the tokens so far are valid", 0)
}

// Gone is the status of a request whose client is gone, or was let go.
func Gone(ctx context.Context) error {
	if cause := context.Cause(ctx); rpc.Reason(cause) != "" {
		return cause
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return DeadlineExceeded()
	}
	return rpc.Error(codes.Canceled, api.ReasonClientGone, "the client is gone", 0)
}

// OtherFailed is the status of a request that ends because another of its call failed with err. It has
// the reason of that, which says whether its tenant pays for a prompt, and is CANCELLED, so that metrics
// count one failure.
func OtherFailed(err error) error {
	return rpc.Error(codes.Canceled, rpc.Reason(err), "another request of the call failed: "+status.Convert(err).Message(), 0)
}

// ShuttingDown is the status of what a router that stops does not take.
func ShuttingDown() error {
	return rpc.Error(codes.Unavailable, api.ReasonRouterShutdown, "this router is shutting down; send the request to another one", time.Second)
}

// Shorten keeps what a client sent from filling messages and logs.
func Shorten(text string) string {
	const most = 64 // characters
	n := 0
	for i := range text {
		if n++; n > most {
			return strings.ToValidUTF8(text[:i], "") + "…"
		}
	}
	return text
}

// SeveralRequests is the answer to who asks for a request by what several ids begin with.
func SeveralRequests(id string, n int) error {
	return rpc.InvalidArgument("request_id", fmt.Sprintf("%d requests have an id that begins with %q: give more of it", n, Shorten(id)))
}

// NotHere is the answer to who resumes a request that neither this router has nor one of the
// others, of which some did not answer.
func NotHere(id string, others, silent int) error {
	what := "or it cannot be resumed any more"
	switch {
	case silent > 0:
		what = fmt.Sprintf("nor to any other (%d of %d did not answer), %s", silent, others, what)
	case others > 0:
		what = "nor to any other, " + what
	}
	return NotYours(id, what)
}

// NotYours is the answer to who asks for a request that there is not, or with a
// secret that is not its own: the same for both, so that nobody learns which ids
// there are.
func NotYours(id, what string) error {
	return rpc.Error(codes.NotFound, api.ReasonRequestNotFound,
		fmt.Sprintf("no request %q with this secret is known to this router, %s: give an id and the secret that came with it in the answer", Shorten(id), what), 0)
}
