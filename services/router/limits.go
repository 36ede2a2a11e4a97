package router

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/quota"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// Authenticate is an rpc.ServerConfig's for the server of clients: it lets in who may call a method
// and is not over a limit, before anything of the call's message is read. Nil: everybody may call.
func (s *Service) Authenticate() func(ctx context.Context, fullMethod string) (context.Context, error) {
	if s.deps.Auth == nil {
		return nil
	}
	return func(ctx context.Context, fullMethod string) (context.Context, error) {
		ctx, err := s.deps.Auth.Call(ctx, fullMethod)
		if err != nil {
			return ctx, err
		}
		switch fullMethod {
		case inferencev1.Inference_Generate_FullMethodName, inferencev1.Inference_Embed_FullMethodName:
			err = s.requests.Check(ctx, quota.Need{}, "")
		case inferencev1.Inference_Tokenize_FullMethodName, inferencev1.Inference_Detokenize_FullMethodName, controlv1.Requests_Explain_FullMethodName:
			err = s.requests.CheckCall(ctx)
		case inferencev1.Inference_Resume_FullMethodName:
			err = s.requests.CheckResume(ctx)
		}
		return ctx, err
	}
}

// limits sets the headers by which OpenAI tells what is left of the limits of who calls.
func (s *Service) limits(ctx context.Context, set func(name string, values ...string)) {
	caller := auth.FromContext(ctx)
	if caller == nil || caller.Limits.RequestsPerMinute+caller.Limits.TokensPerMinute == 0 {
		return
	}
	left := s.quota.Left(caller.Tenant, caller.Limits)
	each := func(what string, limit, left int64, reset time.Duration) {
		if limit > 0 {
			set("x-ratelimit-limit-"+what, strconv.FormatInt(limit, 10))
			set("x-ratelimit-remaining-"+what, strconv.FormatInt(left, 10))
			set("x-ratelimit-reset-"+what, reset.Round(time.Millisecond).String())
		}
	}
	each("requests", caller.Limits.RequestsPerMinute, left.Requests, left.RequestsReset)
	each("tokens", caller.Limits.TokensPerMinute, left.Tokens, left.TokensReset)
}

// counted is the error of a call. One that was refused for what it asks, or asks for a model that there is
// not, counts as a request: it has been read, and more. Another router that asks for a client counts it itself.
func (s *Service) counted(ctx context.Context, err error) error {
	refused := status.Code(err) == codes.InvalidArgument || rpc.Reason(err) == api.ReasonModelNotFound
	if refused && !s.peers.Asks(ctx) {
		s.requests.Count(ctx)
	}
	return err
}

// takeRouters takes in which routers share the limits of tenants.
func (s *Service) takeRouters(v membership.View) {
	if !v.Live && v.AsOf.IsZero() {
		return // nobody knows yet which there are
	}
	epochs := make(map[string]uint64)
	for _, r := range v.Workers {
		if r.GetRole() == controlv1.Role_ROLE_ROUTER {
			epochs[r.GetId()] = r.GetEpoch()
		}
	}
	s.quota.Routers(epochs)
}

// runLimits counts with the other routers until ctx ends.
func (s *Service) runLimits(ctx context.Context) {
	tell := func(*controlv1.TenantReport) {}
	if s.deps.Publisher != nil {
		tell = s.deps.Publisher.Tenants
	}
	s.quota.Run(ctx, tell)
}
