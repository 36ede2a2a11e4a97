package mesh

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/services/router/openai"
)

// listens are where a router's callers come in, by flag.
func (o *Options) listens(listen string) map[string]string {
	return map[string]string{"listen": listen, "http": o.HTTP, "control": o.Control}
}

// exposed says whether others than this machine may call a router.
func (o *Options) exposed(listen string) bool {
	for _, address := range o.listens(listen) {
		if o.Auth.Exposes(address) {
			return true
		}
	}
	return false
}

// checkAuth refuses to let everybody in, or to have keys sent in the clear, where nobody said so.
func (o *Options) checkAuth(listen string, encrypted bool) error {
	_, err := o.Auth.Asks(o.listens(listen), encrypted)
	return err
}

// newAuth makes what asks callers who they are, if the router does.
func (p *process) newAuth() error {
	asks, err := p.options.Auth.Asks(p.options.listens(p.parts[0].listen), p.parts[0].tls != nil)
	if err != nil {
		return err
	}
	if asks {
		p.auth = auth.New(auth.Options{Config: p.options.Auth, Operator: operator, Logger: p.logger, Registerer: p.registry})
	}
	return nil
}

// operator is whose certificate a caller shows, if that is an operator's.
func operator(ctx context.Context) (name string, ok bool) {
	caller, known := identity.FromContext(ctx)
	return caller.String(), known && caller.Role == identity.Operator
}

// authenticate is what a gRPC server asks callers with; nil: they are not asked.
func (p *process) authenticate() func(ctx context.Context, fullMethod string) (context.Context, error) {
	if p.auth == nil {
		return nil
	}
	return p.auth.Call
}

// firstTenant is the tenant of the first key.
const firstTenant = "default"

// makeFirstKey makes a key where there is none that lets anybody in. Its service revokes it in the
// end if nobody was told of it: the next start would make none.
func (p *process) makeFirstKey(ctx context.Context) ([]lifecycle.Service, error) {
	keys, err := p.members.ListKeys(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for API keys: %w", err)
	}
	for _, k := range keys {
		if k.GetRevoked() == nil && (k.GetExpires() == nil || time.Now().Before(k.GetExpires().AsTime())) {
			return nil, nil
		}
	}
	key, record := auth.NewKey(time.Now())
	record.Tenant, record.Scopes = firstTenant, []string{string(auth.Generate), string(auth.Operate)}
	if err := p.members.CreateKey(ctx, record); err != nil {
		return nil, fmt.Errorf("make the first API key: %w", err)
	}
	p.firstKey = key
	return []lifecycle.Service{{Name: "first API key", Close: func() error {
		if p.announced.Load() {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), deregister)
		defer cancel()
		if _, err := p.members.RevokeKey(ctx, record.GetId()); err != nil {
			return fmt.Errorf("revoke the first API key, %s, which was not shown: %w", record.GetId(), err)
		}
		return nil
	}}}, nil
}

// authenticated has a handler of the router's HTTP port answer only who may do what takes a scope.
func (p *process) authenticated(scope auth.Scope, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.auth == nil {
			handler.ServeHTTP(w, r)
			return
		}
		ctx, err := p.auth.Authenticate(r.Context(), r.Header.Get("Authorization"), scope)
		if err != nil {
			f := openai.FailureOf(err)
			if f.Status == http.StatusUnauthorized {
				w.Header().Set("Www-Authenticate", "Bearer")
			}
			http.Error(w, f.Message, f.Status)
			return
		}
		handler.ServeHTTP(w, r.WithContext(ctx))
	})
}
