package auth

import (
	"context"
	"net/http"
	"time"
)

// Forget has the provider's keys be read again as soon as a token asks for it.
func Forget(a *Authenticator) {
	a.tokens.mu.Lock()
	defer a.tokens.mu.Unlock()
	a.tokens.tried = time.Time{}
}

// Fetch reads the provider's keys.
func Fetch(ctx context.Context, a *Authenticator) error { return a.tokens.fetch(ctx, nil) }

// AskThrough has identity providers be asked through a transport, until the function is called that it
// returns.
func AskThrough(transport http.RoundTripper) func() {
	client.Transport = transport
	return func() { client.Transport = nil }
}

// KeysEvery is how often the provider's keys are read.
const KeysEvery = keysEvery
