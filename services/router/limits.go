package router

import (
	"context"
	"strconv"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/membership"
)

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

// takeRouters takes in which routers share the limits of tenants.
func (s *Service) takeRouters(v membership.View) {
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
	s.quota.Run(ctx, func(report *controlv1.TenantReport) {
		if s.deps.TellTenants != nil {
			s.deps.TellTenants(report)
		}
	})
}
