package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// Authenticator says who calls. It is safe for concurrent use.
type Authenticator struct {
	keys     atomic.Pointer[map[string]*known] // nil: not known yet
	tokens   *tokens                           // nil: none are taken
	operator func(ctx context.Context) (name string, ok bool)
	metrics  metrics
}

// Options are what an Authenticator works with.
type Options struct {
	Config Config
	// Operator says whether the certificate of who calls is an operator's, and whose: such a one
	// needs no credential for what takes the scope Operate, and none that it sends counts. Nil: there
	// are none.
	Operator func(ctx context.Context) (name string, ok bool)
	// Logger; nil: none.
	Logger *slog.Logger
	// Registerer gets the metrics; nil: none.
	Registerer prometheus.Registerer
}

// New returns an Authenticator that knows no keys until SetKeys.
func New(o Options) *Authenticator {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	a := &Authenticator{operator: o.Operator, metrics: newMetrics(o.Registerer)}
	if o.Config.OIDC != "" {
		a.tokens = newTokens(o.Config, o.Logger)
	}
	return a
}

// SetKeys replaces all API keys. Calls that were let in go on.
func (a *Authenticator) SetKeys(records []*controlv1.ApiKey) {
	keys := knownKeys(records)
	a.keys.Store(&keys)
}

// Run keeps the keys of the identity provider current until ctx ends.
func (a *Authenticator) Run(ctx context.Context) {
	if a.tokens == nil {
		<-ctx.Done()
		return
	}
	a.tokens.run(ctx)
}

// Call is an rpc.ServerConfig's Authenticate: it lets in who may call a method.
func (a *Authenticator) Call(ctx context.Context, fullMethod string) (context.Context, error) {
	value := ""
	if values := metadata.ValueFromIncomingContext(ctx, header); len(values) > 0 {
		value = values[0]
	}
	return a.Authenticate(ctx, value, scopeOf(fullMethod))
}

// scopeOf is what a credential needs for a method.
func scopeOf(fullMethod string) Scope {
	for _, service := range []string{controlv1.Control_ServiceDesc.ServiceName, controlv1.Keys_ServiceDesc.ServiceName} {
		if strings.HasPrefix(fullMethod, "/"+service+"/") {
			return Operate
		}
	}
	return Generate
}

// Authenticate puts who sends the value of an authorization header into a context. The error is
// a status: UNAUTHENTICATED, or PERMISSION_DENIED if the credential does not have the scope; then
// the context has the caller too, for the audit.
func (a *Authenticator) Authenticate(ctx context.Context, value string, scope Scope) (context.Context, error) {
	if scope == Operate && a.operator != nil { // whatever key comes with it, such as that of the environment
		if name, ok := a.operator(ctx); ok {
			return With(ctx, &Principal{Name: name, Scopes: []Scope{Operate}}, ""), nil
		}
	}
	credential, ok := credentialOf(value)
	if !ok {
		a.metrics.refused.WithLabelValues("missing").Inc()
		return ctx, rpc.Error(codes.Unauthenticated, api.ReasonNoCredentials, "no credentials: send the header \"Authorization: Bearer KEY\" (--api-key or TANDEM_API_KEY of the command line); 'tandem keys create' makes keys", 0)
	}
	principal, err := a.principal(ctx, credential)
	switch {
	case errors.Is(err, errUnknownYet):
		return ctx, rpc.Error(codes.Unavailable, api.ReasonKeysUnknown, "this router does not know the keys yet: retry", time.Second)
	case err != nil:
		a.metrics.refused.WithLabelValues("invalid").Inc()
		return ctx, rpc.Error(codes.Unauthenticated, api.ReasonInvalidCredentials, err.Error(), 0)
	case !principal.may(scope):
		a.metrics.refused.WithLabelValues("scope").Inc()
		return With(ctx, principal, credential), rpc.Error(codes.PermissionDenied, api.ReasonScopeMissing, fmt.Sprintf("%q may not do this: it takes a credential with the scope %q", principal.Name, scope), 0)
	}
	return With(ctx, principal, credential), nil
}

// Still says whether the caller of a context that Call or Authenticate has made may still do what
// takes a scope. The error is theirs: the credential was revoked, or has expired. Who shows a
// certificate may until the connection ends.
func (a *Authenticator) Still(ctx context.Context, scope Scope) error {
	c, _ := ctx.Value(principalKey{}).(call)
	if c.credential == "" {
		return nil
	}
	_, err := a.Authenticate(ctx, bearer+c.credential, scope)
	return err
}

var (
	errUnknownYet = errors.New("the keys are not known yet")
	errInvalidKey = errors.New("the API key is not valid: it does not exist, has expired or was revoked; 'tandem keys create' makes keys")
)

// principal is who has a credential.
func (a *Authenticator) principal(ctx context.Context, credential string) (*Principal, error) {
	id, isKey := keyID(credential)
	if !isKey {
		if a.tokens == nil || strings.HasPrefix(credential, keyPrefix) {
			return nil, errInvalidKey
		}
		return a.tokens.principal(ctx, credential)
	}
	keys := a.keys.Load()
	if keys == nil {
		return nil, errUnknownYet
	}
	k := (*keys)[id]
	if k == nil || !k.is(credential) || !k.expires.IsZero() && !time.Now().Before(k.expires) {
		return nil, errInvalidKey
	}
	return k.principal, nil
}
