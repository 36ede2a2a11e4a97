package auth_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/quota"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// BenchmarkKeyAndLimits is what a key and its limits cost a request.
func BenchmarkKeyAndLimits(b *testing.B) {
	a, limiter := auth.New(auth.Options{}), quota.New("router", nil)
	key, record := newKey("acme", "generate")
	a.SetKeys([]*controlv1.ApiKey{record})
	for b.Loop() {
		ctx, err := a.Authenticate(b.Context(), "Bearer "+key, auth.Generate)
		if err != nil {
			b.Fatal(err)
		}
		caller := auth.FromContext(ctx)
		charge, err := limiter.Admit(ctx, caller.Tenant, quota.Limits{RequestsPerMinute: 1 << 40, TokensPerMinute: 1 << 40, Concurrency: 100}, 100)
		if err != nil {
			b.Fatal(err)
		}
		charge.Done(50)
	}
}
