package auth

import (
	"context"
	"time"
)

// Forget has the provider's keys be read again as soon as a token asks for it.
func Forget(a *Authenticator) {
	a.tokens.mu.Lock()
	defer a.tokens.mu.Unlock()
	a.tokens.tried = time.Time{}
}

// Fetch reads the provider's keys.
func Fetch(ctx context.Context, a *Authenticator) error { return a.tokens.fetch(ctx) }
