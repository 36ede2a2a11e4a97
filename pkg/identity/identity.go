// Package identity identifies the other end of a connection by its certificate, and builds the
// TLS of every part from files that may be replaced while it runs.
//
// Package rpc, commands, and whatever checks its callers import it; it imports only boundedfile and
// trywrite. A Source reads its files again when a connection begins, at most once a
// second, so it needs no goroutine. Open connections keep their certificates.
package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Role is what a part may do.
type Role string

// The roles. Operator is a person or a program that drains workers and sets the policy.
const (
	Router     Role = "router"
	Prefill    Role = "prefill"
	Decode     Role = "decode"
	KVTransfer Role = "kvtransfer"
	Operator   Role = "operator"
)

// Roles are all roles.
func Roles() []Role { return []Role{Router, Prefill, Decode, KVTransfer, Operator} }

// Identity is who a verified certificate stands for. The zero value is nobody.
type Identity struct {
	Role Role
	// Name is a worker's id, or the one name of all workers of a deployment; see Names.
	Name string
}

// String is "role/name".
func (i Identity) String() string { return string(i.Role) + "/" + i.Name }

// Covers says whether the identity is that of the part with this role and id.
func (i Identity) Covers(role Role, id string) bool { return i.Role == role && i.Names(id) }

// Names says whether the identity is that of a part with this id, in whatever role it has. A name
// stands for the id that equals it, and for ids that begin with it and a hyphen: the pods of a
// deployment share one certificate.
func (i Identity) Names(id string) bool {
	rest, begins := strings.CutPrefix(id, i.Name)
	return i.Name != "" && begins && (rest == "" || rest[0] == '-')
}

// Rules say which identity a certificate stands for.
type Rules struct {
	// TrustDomain is that of SPIFFE ids: spiffe://TRUST-DOMAIN/ROLE/NAME.
	TrustDomain string
	// Names give a role to certificates without such an id. The first that matches decides.
	Names []NameRule
}

// NameRule gives a role to the certificates with a matching name.
type NameRule struct {
	Role Role
	// Pattern is of path.Match, for one of the certificate's URIs and DNS names, and for its
	// common name if it has neither.
	Pattern string
}

// ParseNameRule reads "ROLE=PATTERN".
func ParseNameRule(text string) (NameRule, error) {
	role, pattern, found := strings.Cut(text, "=")
	if !found || pattern == "" || !slices.Contains(Roles(), Role(role)) {
		return NameRule{}, fmt.Errorf("%q is not ROLE=PATTERN, such as prefill=*.prefill.example.com, with one of the roles %v", text, Roles())
	}
	if _, err := path.Match(pattern, ""); err != nil {
		return NameRule{}, fmt.Errorf("%q: the pattern %q is not valid: brackets must be closed", text, pattern)
	}
	return NameRule{Role(role), pattern}, nil
}

// maxName bounds a name, in bytes: it stands in log lines and errors.
const maxName = 253

// Identity is who the certificate stands for; false: nobody. The caller has verified it. By a
// rule the name is the first label of the DNS or common name that matched, or the last element
// of the URI.
func (r Rules) Identity(certificate *x509.Certificate) (Identity, bool) {
	var found []Identity
	for _, uri := range certificate.URIs {
		if uri.Scheme != "spiffe" || uri.Host != r.TrustDomain || r.TrustDomain == "" {
			continue
		}
		role, name, _ := strings.Cut(strings.TrimPrefix(uri.Path, "/"), "/")
		if ValidName(name) && slices.Contains(Roles(), Role(role)) {
			found = append(found, Identity{Role(role), name})
		}
	}
	switch len(found) {
	case 0:
		return r.byName(certificate)
	case 1:
		return found[0], true
	}
	return Identity{}, false // SPIFFE allows one only
}

func (r Rules) byName(certificate *x509.Certificate) (Identity, bool) {
	names := make(map[string]string, len(certificate.DNSNames)+len(certificate.URIs)) // the identity's name, by the certificate's
	for _, dns := range certificate.DNSNames {
		names[dns], _, _ = strings.Cut(dns, ".")
	}
	for _, uri := range certificate.URIs {
		names[uri.String()] = path.Base(uri.Path)
	}
	if cn := certificate.Subject.CommonName; len(names) == 0 && cn != "" {
		names[cn], _, _ = strings.Cut(cn, ".")
	}
	for _, rule := range r.Names {
		for _, candidate := range slices.Sorted(maps.Keys(names)) {
			if matches, err := path.Match(rule.Pattern, candidate); err == nil && matches && ValidName(names[candidate]) {
				return Identity{rule.Role, names[candidate]}, true
			}
		}
	}
	return Identity{}, false
}

// ValidName says whether a name can be that of a part: printable ASCII without what separates.
func ValidName(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= maxName && !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`/*"\`, r)
	})
}

// authInfo is what a handshake has found out.
type authInfo struct {
	credentials.TLSInfo
	identity Identity // the zero value: nobody
}

// FromContext is who makes the gRPC call of a server's context; false: the connection has no
// TLS, the peer showed no certificate, or one that stands for nobody.
func FromContext(ctx context.Context) (Identity, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Identity{}, false
	}
	return FromAuthInfo(p.AuthInfo)
}

// FromAuthInfo is FromContext for either end of a connection.
func FromAuthInfo(info credentials.AuthInfo) (Identity, bool) {
	a, ok := unwrapped(info)
	return a.identity, ok && a.identity != Identity{}
}

// Secured says whether a connection has TLS of this package, whoever its peer is.
func Secured(info credentials.AuthInfo) bool {
	_, ok := unwrapped(info)
	return ok
}

func unwrapped(info credentials.AuthInfo) (authInfo, bool) {
	for {
		switch is := info.(type) {
		case authInfo:
			return is, true
		case interface{ Unwrap() credentials.AuthInfo }: // rpc's metered connections
			info = is.Unwrap()
		default:
			return authInfo{}, false
		}
	}
}

// errNobody is wrapped by the error of a handshake with a peer whose certificate stands for
// nobody, or for another role than is asked for.
var errNobody = errors.New("the certificate does not stand for a part that belongs here")
