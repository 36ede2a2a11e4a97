package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tandem-serving/tandem/pkg/quota"
)

// An API key is "tandem-ID-SECRET", in lower-case hexadecimal: 48 bits that name it, and 256 that
// nobody guesses.
const (
	keyPrefix   = "tandem-"
	idBytes     = 6
	secretBytes = 32
	keyLength   = len(keyPrefix) + 2*idBytes + 1 + 2*secretBytes
)

// Bounds of a key's record.
const (
	// maxTenantBytes bounds the name of a tenant.
	maxTenantBytes = 128
	maxLimit       = 1 << 48
	// maxYears bounds how far away its expiry is: a time.Duration holds no 300 years.
	maxYears = 100
)

// NewKey draws a key, and what is kept of it: its id and hash, and when it was made.
func NewKey(now time.Time) (key string, record *controlv1.ApiKey) {
	var b [idBytes + secretBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	id := hex.EncodeToString(b[:idBytes])
	key = keyPrefix + id + "-" + hex.EncodeToString(b[idBytes:])
	hash := sha256.Sum256([]byte(key))
	return key, &controlv1.ApiKey{Id: id, Sha256: hash[:], Created: timestamppb.New(now)}
}

// keyID is the id of a key; false: it is none.
func keyID(key string) (id string, ok bool) {
	if len(key) != keyLength || !strings.HasPrefix(key, keyPrefix) {
		return "", false
	}
	id, secret, ok := strings.Cut(key[len(keyPrefix):], "-")
	return id, ok && len(id) == 2*idBytes && isHex(id) && isHex(secret)
}

func isHex(text string) bool { return strings.Trim(text, "0123456789abcdef") == "" }

// CheckKey says what is wrong with a key's record, field first.
func CheckKey(k *controlv1.ApiKey) (field, problem string) {
	limits := k.GetLimits()
	switch _, err := parseScopes(k.GetScopes()); {
	case len(k.GetId()) != 2*idBytes || !isHex(k.GetId()):
		return "id", fmt.Sprintf("is not %d hexadecimal digits", 2*idBytes)
	case len(k.GetSha256()) != sha256.Size:
		return "sha256", fmt.Sprintf("has %d bytes, not %d", len(k.GetSha256()), sha256.Size)
	case checkTenant(k.GetTenant()) != nil:
		return "tenant", checkTenant(k.GetTenant()).Error()
	case len(k.GetScopes()) == 0:
		return "scopes", "are missing: give generate, operate or both"
	case err != nil:
		return "scopes", err.Error()
	case k.GetExpires().AsTime().After(time.Now().AddDate(maxYears, 0, 0)):
		return "expires", fmt.Sprintf("is more than %d years away: leave it out for a key without an end", maxYears)
	case max(limits.GetRequestsPerMinute(), limits.GetTokensPerMinute(), limits.GetConcurrency(), limits.GetPromptTokens(), limits.GetAnswerTokens(), uint64(limits.GetMaxPriority())) > maxLimit:
		return "limits", fmt.Sprintf("are above %d", int64(maxLimit))
	}
	return "", ""
}

// checkTenant says why a tenant cannot be called so.
func checkTenant(tenant string) error {
	hidden := func(r rune) bool { return !unicode.IsPrint(r) } // it could look like another one
	if tenant == "" || len(tenant) > maxTenantBytes || !utf8.ValidString(tenant) || strings.ContainsFunc(tenant, hidden) || tenant != strings.TrimSpace(tenant) {
		return fmt.Errorf("has to be 1 to %d bytes of printable UTF-8, without spaces at its ends", maxTenantBytes)
	}
	return nil
}

// known is a key that may be used.
type known struct {
	hash      []byte
	expires   time.Time // zero: never
	principal *Principal
}

// knownKeys are the keys of records that may be used, by id.
func knownKeys(records []*controlv1.ApiKey) map[string]*known {
	keys := make(map[string]*known, len(records))
	for _, r := range records {
		if field, _ := CheckKey(r); field != "" || r.GetRevoked() != nil {
			continue
		}
		scopes, _ := parseScopes(r.GetScopes()) // checked
		k := &known{hash: r.GetSha256(), principal: &Principal{
			Name: r.GetId(), Tenant: r.GetTenant(), Scopes: slices.Clip(scopes), Limits: quota.LimitsOf(r.GetLimits()),
		}}
		if r.GetExpires() != nil {
			k.expires = r.GetExpires().AsTime()
		}
		keys[r.GetId()] = k
	}
	return keys
}

// is says whether this is the key, in a time that does not depend on it.
func (k *known) is(key string) bool {
	hash := sha256.Sum256([]byte(key))
	return subtle.ConstantTimeCompare(hash[:], k.hash) == 1
}
