package auth

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/tandem-serving/tandem/pkg/quota"
)

// Scope is what a credential may be used for.
type Scope string

// The scopes.
const (
	// Generate is everything that clients call.
	Generate Scope = "generate"
	// Operate is everything that operators call: workers, drains, policy, keys, explanations
	// of all requests.
	Operate Scope = "operate"
)

// parseScopes reads scopes.
func parseScopes(names []string) (scopes []Scope, err error) {
	for _, name := range names {
		if s := Scope(name); s != Generate && s != Operate {
			return nil, fmt.Errorf("%q is no scope: there are %s and %s", name, Generate, Operate)
		}
		scopes = append(scopes, Scope(name))
	}
	return scopes, nil
}

// Principal is who calls. It is shared: do not change it.
type Principal struct {
	// Name of the credential: the id of an API key, or the subject of a token.
	Name   string
	Tenant string
	Scopes []Scope
	Limits quota.Limits
}

// may says whether who calls may do what takes a scope.
func (p *Principal) may(s Scope) bool { return slices.Contains(p.Scopes, s) }

type principalKey struct{}

// call is what a context has of its caller.
type call struct {
	principal  *Principal
	credential string // that the caller sent
}

// FromContext is who calls; nil: nobody was asked who they are.
func FromContext(ctx context.Context) *Principal {
	c, _ := ctx.Value(principalKey{}).(call)
	return c.principal
}

// With puts a caller into a context, with the credential that they sent.
func With(ctx context.Context, p *Principal, credential string) context.Context {
	return context.WithValue(ctx, principalKey{}, call{p, credential})
}

// Forward has the calls of ctx to another router of the mesh come from the same caller.
func Forward(ctx context.Context) context.Context {
	if c, _ := ctx.Value(principalKey{}).(call); c.credential != "" {
		return metadata.AppendToOutgoingContext(ctx, header, bearer+c.credential)
	}
	return ctx
}

const (
	header = "authorization"
	bearer = "Bearer "
)

// credentialOf is what stands in an authorization header.
func credentialOf(value string) (credential string, ok bool) {
	if len(value) <= len(bearer) || !strings.EqualFold(value[:len(bearer)], bearer) {
		return "", false
	}
	return strings.TrimSpace(value[len(bearer):]), true
}
