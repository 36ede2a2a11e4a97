package auth

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"github.com/tandem-serving/tandem/pkg/quota"
)

const (
	// keysEvery is how often the provider's keys are read again, and keysLeast how often at most,
	// whatever tokens ask for.
	keysEvery = 5 * time.Minute
	keysLeast = 5 * time.Second
	// fetchTimeout bounds one reading.
	fetchTimeout = 5 * time.Second
	// maxTokenBytes bounds a token, and maxCached how many are known that were checked.
	maxTokenBytes = 16 << 10
	maxCached     = 4096
)

// algorithms are those of public keys that tokens may be signed with.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// tokens checks the tokens of an identity provider.
type tokens struct {
	config Config
	log    *slog.Logger

	fetching chan struct{} // has an element while the provider's keys are read

	mu       sync.Mutex
	provider *provider // nil: not known yet
	tried    time.Time // when the provider last answered, or did not
	checked  map[[sha256.Size]byte]checked
}

// checked is a token whose signature is good.
type checked struct {
	principal *Principal
	expires   time.Time
}

func newTokens(c Config, log *slog.Logger) *tokens {
	return &tokens{
		config: c, log: log.With(slog.String("oidc", c.OIDC)), fetching: make(chan struct{}, 1), checked: make(map[[sha256.Size]byte]checked),
	}
}

// run reads the provider's keys now and then, until ctx ends. If the provider does not answer,
// the last keys stand.
func (t *tokens) run(ctx context.Context) {
	for {
		wait := keysEvery
		if err := t.fetch(ctx, nil); err != nil && ctx.Err() == nil {
			t.warn(err)
			wait = keysLeast
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// errJustTried says that the provider's keys were asked for a moment ago.
var errJustTried = errors.New("the identity provider's keys were asked for a moment ago")

// fetch reads the provider's keys, once no other call does. The keys of failed, nil for none, will not
// do: fetch reads none if others are known by then, and fails with errJustTried soon after it was tried.
func (t *tokens) fetch(ctx context.Context, failed *provider) error {
	select {
	case t.fetching <- struct{}{}:
		defer func() { <-t.fetching }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if failed != nil {
		t.mu.Lock()
		now, tried := t.provider, t.tried
		t.mu.Unlock()
		switch {
		case now != failed:
			return nil
		case time.Since(tried) < keysLeast:
			return errJustTried
		}
		ctx = context.WithoutCancel(ctx) // others wait for it, too
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	p, err := readProvider(ctx, t.config.OIDC)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tried = time.Now()
	if err != nil {
		return err
	}
	p.verifier = oidc.NewVerifier(p.issuer, p, &oidc.Config{ClientID: t.config.Audience, SupportedSigningAlgs: names(algorithms)})
	t.provider = p
	clear(t.checked) // a key may be gone
	return nil
}

func names(algorithms []jose.SignatureAlgorithm) (out []string) {
	for _, a := range algorithms {
		out = append(out, string(a))
	}
	return out
}

// principal is who has a token.
func (t *tokens) principal(ctx context.Context, token string) (*Principal, error) {
	if strings.Count(token, ".") != 2 {
		return nil, errors.New("the credential is neither an API key nor a token (JWT)")
	}
	if len(token) > maxTokenBytes {
		return nil, fmt.Errorf("the token has %d bytes, which is more than %d: leave out claims", len(token), maxTokenBytes)
	}
	hash := sha256.Sum256([]byte(token))
	t.mu.Lock()
	known, provider := t.checked[hash], t.provider
	t.mu.Unlock()
	if known.principal != nil && time.Now().Before(known.expires) {
		return known.principal, nil
	}
	if provider == nil {
		return nil, errUnknownYet
	}
	verified, err := provider.verifier.Verify(ctx, token)
	if err != nil && provider.lacksKey(ctx, token) && t.fetchAgain(ctx, provider) {
		t.mu.Lock()
		provider = t.provider
		t.mu.Unlock()
		verified, err = provider.verifier.Verify(ctx, token)
	}
	if expired, is := errors.AsType[*oidc.TokenExpiredError](err); is && expired.Expiry.Before(time.Unix(1, 0)) {
		err = errors.New(`its claim "exp" is missing or 0`)
	}
	if err != nil {
		return nil, fmt.Errorf("the token is not valid: %w", err)
	}
	principal, err := t.read(verified)
	if err != nil {
		return nil, fmt.Errorf("the token is not valid: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.provider == provider { // else the key may be gone
		if len(t.checked) >= maxCached {
			clear(t.checked)
		}
		t.checked[hash] = checked{principal, verified.Expiry}
	}
	return principal, nil
}

// fetchAgain has other keys than those of a provider, none of which has signed a token; false: there
// are none.
func (t *tokens) fetchAgain(ctx context.Context, failed *provider) bool {
	err := t.fetch(ctx, failed)
	if err != nil && !errors.Is(err, errJustTried) && ctx.Err() == nil {
		t.warn(err)
	}
	return err == nil
}

func (t *tokens) warn(err error) {
	t.mu.Lock()
	known := t.provider != nil
	t.mu.Unlock()
	if known {
		t.log.Warn("the identity provider's keys cannot be read: using those that are known", slog.Any("error", err))
	} else {
		t.log.Warn("the identity provider's keys cannot be read: no token is taken until they are", slog.Any("error", err))
	}
}

// verifierClaims are those that package oidc reads, whatever their case.
var verifierClaims = []string{"iss", "sub", "aud", "exp", "nbf", "iat"}

// read is who a token stands for. The names of claims are exact (RFC 7519).
func (t *tokens) read(token *oidc.IDToken) (*Principal, error) {
	var claims map[string]json.RawMessage
	if token.Claims(&claims) != nil {
		return nil, errors.New("its claims cannot be read")
	}
	for name := range claims {
		for _, known := range verifierClaims {
			if name != known && strings.EqualFold(name, known) {
				return nil, fmt.Errorf("its claim %q is taken for %q: leave it out", name, known)
			}
		}
	}
	p := &Principal{Name: token.Subject}
	if json.Unmarshal(claims[t.config.TenantClaim], &p.Tenant) != nil || checkTenant(p.Tenant) != nil {
		return nil, fmt.Errorf("its claim %q does not name a tenant", t.config.TenantClaim)
	}
	if checkTenant(p.Name) != nil {
		return nil, errors.New(`its claim "sub" does not name anybody`)
	}
	var err error
	if p.Limits, err = limitsOf(claims["tandem_limits"]); err != nil {
		return nil, err
	}
	for _, name := range append(words(claims["scope"]), words(claims["scp"])...) {
		if s := Scope(strings.TrimPrefix(name, "tandem:")); (s == Generate || s == Operate) && !p.may(s) {
			p.Scopes = append(p.Scopes, s)
		}
	}
	return p, nil
}

// limitsOf reads a claim of limits; without one there are none. What it does not know is an error, since a
// limit would else not hold.
func limitsOf(claim json.RawMessage) (l quota.Limits, err error) {
	if claim == nil {
		return l, nil
	}
	fields := map[string]*int64{
		"requests_per_minute": &l.RequestsPerMinute, "tokens_per_minute": &l.TokensPerMinute, "concurrency": &l.Concurrency,
		"prompt_tokens": &l.PromptTokens, "answer_tokens": &l.AnswerTokens, "max_priority": &l.MaxPriority,
	}
	var limits map[string]json.RawMessage
	if json.Unmarshal(claim, &limits) != nil || limits == nil {
		return l, errors.New(`its claim "tandem_limits" is not an object`)
	}
	for name, value := range limits {
		field := fields[name]
		if field == nil {
			return l, fmt.Errorf(`its claim "tandem_limits" has %q: known are %s`, name, strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		}
		if string(value) == "null" || json.Unmarshal(value, field) != nil || *field < 0 {
			return l, fmt.Errorf(`its claim "tandem_limits" has %q that is not a number from 0 on`, name)
		}
	}
	return l, nil
}

// words are those of a text, or of an array of texts.
func words(raw json.RawMessage) (out []string) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return strings.Fields(text)
	}
	_ = json.Unmarshal(raw, &out) // of another type: none
	return out
}
