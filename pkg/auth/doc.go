// Package auth says who calls a router: a client with an API key or a token (JWT) of an identity
// provider. Tenant, scopes and limits come from the credential.
//
// The router and the commands import it. An Authenticator's Run is one goroutine, of its caller,
// which reads the provider's keys again. Its locks are leaves.
package auth
