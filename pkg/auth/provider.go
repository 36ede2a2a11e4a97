package auth

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"github.com/tandem-serving/tandem/pkg/boundedfile"
)

// maxDocumentBytes bounds a discovery document, and a set of keys.
const maxDocumentBytes = 1 << 20

// provider is an identity provider at a moment: its keys do not change.
type provider struct {
	issuer   string
	keys     []jose.JSONWebKey
	verifier *oidc.IDTokenVerifier
}

var _ oidc.KeySet = (*provider)(nil)

// errUnknownKey says that no key of the provider has signed a token.
var errUnknownKey = errors.New("it is not signed with a key of the identity provider")

// VerifySignature is the payload of a token that one of the keys has signed.
func (p *provider) VerifySignature(_ context.Context, token string) ([]byte, error) {
	jws, err := jose.ParseSigned(token, algorithms)
	if err != nil {
		return nil, errors.New("it is malformed, or signed in a way that is not taken")
	}
	id := jws.Signatures[0].Header.KeyID
	for _, key := range p.keys {
		if id != "" && key.KeyID != id || key.Algorithm != "" && key.Algorithm != jws.Signatures[0].Header.Algorithm {
			continue
		}
		if payload, err := jws.Verify(&key); err == nil {
			return payload, nil
		}
	}
	return nil, errUnknownKey
}

// lacksKey says whether a token is well-formed, but no key has signed it.
func (p *provider) lacksKey(ctx context.Context, token string) bool {
	_, err := p.VerifySignature(ctx, token)
	return errors.Is(err, errUnknownKey)
}

// readProvider reads the discovery document of an issuer, or of a file, and the keys that it
// names. A file may name a file, relative to its own folder.
func readProvider(ctx context.Context, source string) (*provider, error) {
	at := source
	if strings.Contains(source, "://") {
		at = strings.TrimSuffix(source, "/") + "/.well-known/openid-configuration"
	}
	var document struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := readJSON(ctx, at, &document); err != nil {
		return nil, err
	}
	switch {
	case document.Issuer == "" || document.Keys == "":
		return nil, fmt.Errorf("%s: issuer or jwks_uri is missing", at)
	case at != source && document.Issuer != source:
		return nil, fmt.Errorf("%s: the issuer there is %q: give that one", at, document.Issuer)
	}
	keysAt := document.Keys
	if !strings.Contains(keysAt, "://") {
		if at != source {
			return nil, fmt.Errorf("%s: jwks_uri is not a URL", at)
		}
		if !filepath.IsAbs(keysAt) {
			keysAt = filepath.Join(filepath.Dir(source), keysAt)
		}
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := readJSON(ctx, keysAt, &set); err != nil {
		return nil, err
	}
	p := &provider{issuer: document.Issuer}
	var unread error
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		if err := json.Unmarshal(raw, &key); err != nil { // of a kind that is not known here: the others count (RFC 7517, 5)
			unread = fmt.Errorf("there is no public key for signatures that can be read: %w", err)
			continue
		}
		if key.Valid() && key.IsPublic() && (key.Use == "" || key.Use == "sig") {
			p.keys = append(p.keys, key)
		}
	}
	if len(p.keys) == 0 {
		return nil, fmt.Errorf("%s: %w", keysAt, cmp.Or(unread, errors.New("there is no public key for signatures")))
	}
	return p, nil
}

// readJSON reads a file or a URL.
func readJSON(ctx context.Context, at string, into any) error {
	open := openFile
	if strings.Contains(at, "://") {
		open = openURL
	}
	from, err := open(ctx, at)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	data, err := boundedfile.ReadFrom(from, maxDocumentBytes)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	return nil
}

func openFile(_ context.Context, path string) (io.ReadCloser, error) { return os.Open(path) }

// client follows a redirect only to what may be asked.
var client = &http.Client{CheckRedirect: func(next *http.Request, via []*http.Request) error {
	if len(via) >= 3 {
		return errors.New("it redirects too often")
	}
	return checkURL(next.URL.String())
}}

func openURL(ctx context.Context, at string) (io.ReadCloser, error) {
	if err := checkURL(at); err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		_ = answer.Body.Close()
		return nil, fmt.Errorf("%s: %s", at, answer.Status)
	}
	return answer.Body, nil
}
