package identity

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/tandem-serving/tandem/pkg/boundedfile"
)

const (
	// checkInterval is how often files are looked at, at most.
	checkInterval = time.Second
	// maxFileBytes bounds a file: a bundle of every public authority has a quarter of that.
	maxFileBytes = 1 << 20
)

// Source makes the TLS of a part from files, and reads them again when they change. A file
// that cannot be read, or a certificate and key that do not belong together, as while they are
// being replaced, leave what was there in use. So do a certificate that has expired, or is not valid
// yet, and one of another role, or after BelongTo, of another part. It is safe for concurrent use.
type Source struct {
	cfg   Config
	rules Rules
	log   *slog.Logger

	mu      sync.Mutex
	role    Role   // of BelongTo; empty: it was not called
	id      string // of BelongTo
	checked time.Time
	seen    [3]os.FileInfo
	files   *files
	failed  string // why the files cannot be used as they are now; empty: they are in use
}

// files is what was read.
type files struct {
	certificate *tls.Certificate // nil: there is none
	authorities *x509.CertPool   // nil: the system's
	expires     time.Time        // the certificate, or what it was signed with
}

// Open reads the files. A client may have no certificate, and no CAFile to believe the
// system's authorities.
func Open(cfg Config, log *slog.Logger) (*Source, error) {
	rules, err := cfg.Rules()
	if err != nil {
		return nil, fmt.Errorf("--tls-role: %w", err)
	}
	s := &Source{cfg: cfg, rules: rules, log: cmp.Or(log, slog.New(slog.DiscardHandler))}
	s.seen, s.checked = s.stat(), time.Now() // first, so that what is replaced meanwhile is read again
	if s.files, err = s.read(); err != nil {
		return nil, err
	}
	return s, nil
}

// Identity is who this part itself is by its certificate; false: it has none, or nobody's.
func (s *Source) Identity() (Identity, bool) {
	if c := s.current().certificate; c != nil {
		return s.rules.Identity(c.Leaf)
	}
	return Identity{}, false
}

// Expires is when the part's certificate does, or before it, the authority that signed it; the zero
// time: it has none.
func (s *Source) Expires() time.Time { return s.current().expires }

// BelongTo refuses a certificate that has expired, or is not that of a part: all others would refuse
// it, one by one. Nor are such files used later.
func (s *Source) BelongTo(role Role, id string) error {
	now := s.current()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.role, s.id = role, id
	return s.usable(now)
}

// usable says why what was read is not to be used. It needs mu.
func (s *Source) usable(read *files) error {
	var who Identity
	if read.certificate != nil {
		who, _ = s.rules.Identity(read.certificate.Leaf)
	}
	switch flag := s.cfg.flag("cert"); {
	case !read.expires.IsZero() && time.Now().After(read.expires):
		return fmt.Errorf("%s: the certificate, or its authority, has expired on %s: replace it", flag, read.expires.Format(time.DateOnly))
	case read != s.files && read.certificate != nil && time.Now().Before(read.certificate.Leaf.NotBefore):
		return fmt.Errorf("%s: the certificate is valid from %s on", flag, read.certificate.Leaf.NotBefore.Format(time.RFC3339))
	case s.role != "" && !who.Covers(s.role, s.id):
		return fmt.Errorf("%s: the certificate is that of %q, but this part is %s/%s: pass another certificate, or --id", flag, who, s.role, s.id)
	case s.files.certificate != nil:
		if was, known := s.rules.Identity(s.files.certificate.Leaf); known && was.Role != who.Role {
			return fmt.Errorf("%s: the certificate is that of %q, and was that of %q", flag, who, was)
		}
	}
	return nil
}

// current is what the files have, read again if they changed.
func (s *Source) current() *files {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.checked) < checkInterval {
		return s.files
	}
	s.checked = time.Now()
	now := s.stat()
	if s.failed == "" && unchanged(now, s.seen) {
		return s.files
	}
	read, err := s.read()
	if err == nil {
		err = s.usable(read)
	}
	if err != nil {
		if s.failed != err.Error() {
			s.log.Warn("certificates were not read again: those from before stay in use", slog.Any("error", err))
		}
		s.failed = err.Error()
		return s.files
	}
	s.failed, s.seen, s.files = "", now, read
	attributes := []any{}
	if read.certificate != nil {
		attributes = append(attributes, slog.Time("expires", read.expires))
	}
	s.log.Info("certificates were read again", attributes...)
	return s.files
}

func (s *Source) stat() (infos [3]os.FileInfo) {
	for i, name := range []string{s.cfg.CertFile, s.cfg.KeyFile, s.cfg.CAFile} {
		if name != "" {
			infos[i], _ = os.Stat(name) // nil: reading says why
		}
	}
	return infos
}

func unchanged(a, b [3]os.FileInfo) bool {
	for i := range a {
		switch {
		case a[i] == nil && b[i] == nil:
		case a[i] == nil || b[i] == nil, !os.SameFile(a[i], b[i]), a[i].Size() != b[i].Size(), !a[i].ModTime().Equal(b[i].ModTime()):
			return false
		}
	}
	return true
}

func (s *Source) read() (*files, error) {
	var read files
	var above []*x509.Certificate // that may have signed the part's
	if s.cfg.CertFile != "" || s.cfg.KeyFile != "" {
		certificate, err := readFile(s.cfg.flag("cert"), s.cfg.CertFile)
		if err != nil {
			return nil, err
		}
		key, err := readFile(s.cfg.flag("key"), s.cfg.KeyFile)
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return nil, fmt.Errorf("%s: %s with the key %s: %w", s.cfg.flag("cert"), s.cfg.CertFile, s.cfg.KeyFile, err)
		}
		read.certificate, above = &pair, parsePEM(certificate)
	}
	if s.cfg.CAFile != "" {
		bundle, err := readFile(s.cfg.flag("ca"), s.cfg.CAFile)
		if err != nil {
			return nil, err
		}
		read.authorities = x509.NewCertPool()
		if !read.authorities.AppendCertsFromPEM(bundle) {
			return nil, fmt.Errorf("%s: %s has no certificate in PEM", s.cfg.flag("ca"), s.cfg.CAFile)
		}
		above = append(above, parsePEM(bundle)...)
	}
	if read.certificate != nil {
		read.expires = expires(read.certificate.Leaf, above)
	}
	return &read, nil
}

// parsePEM are the certificates in a file.
func parsePEM(data []byte) (found []*x509.Certificate) {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return found
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			found = append(found, c)
		}
	}
}

// expires is when a certificate does, or what it was signed with, as far as that is among those above.
// Of several that may have signed it, as of an authority that was renewed with its key, the last counts.
func expires(c *x509.Certificate, above []*x509.Certificate) time.Time {
	var last time.Time
	for i, parent := range above {
		if parent.Equal(c) || !bytes.Equal(parent.RawSubject, c.RawIssuer) || c.CheckSignatureFrom(parent) != nil {
			continue
		}
		if until := expires(parent, slices.Delete(slices.Clone(above), i, i+1)); until.After(last) {
			last = until
		}
	}
	if last.IsZero() || c.NotAfter.Before(last) {
		return c.NotAfter
	}
	return last
}

func readFile(flag, name string) ([]byte, error) {
	if name == "" {
		return nil, fmt.Errorf("%s: is missing: a certificate needs its key, and a key its certificate", flag)
	}
	data, err := boundedfile.Read(name, maxFileBytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return data, nil
}

// Certificate is the part's own, to be shown in a handshake; without a chain if it has none.
func (s *Source) Certificate() tls.Certificate {
	if c := s.current().certificate; c != nil {
		return *c
	}
	return tls.Certificate{}
}

// Authorities are those whose certificates are believed now; nil: the system's.
func (s *Source) Authorities() *x509.CertPool { return s.current().authorities }

// errNoCertificate: a server's configuration is checked before.
var errNoCertificate = errors.New("a server needs a certificate: --tls-cert")

// ServerTLS is the TLS of a server that speaks one of the protocols, such as "h2" for gRPC.
// With members only those come in who have a certificate of the authorities that stands for
// somebody; without it, others may come without a certificate, but not with a wrong one.
func (s *Source) ServerTLS(members bool, protocols ...string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: protocols, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := s.current()
		if now.certificate == nil {
			return nil, errNoCertificate
		}
		cfg := &tls.Config{
			MinVersion: tls.VersionTLS13, NextProtos: protocols,
			// A resumed session would outlive the authority that vouched for it.
			SessionTicketsDisabled:      true,
			DynamicRecordSizingDisabled: true, // which is for pages that a browser shows piece by piece
			Certificates:                []tls.Certificate{*now.certificate}, ClientCAs: now.authorities, ClientAuth: tls.VerifyClientCertIfGiven,
		}
		if members {
			cfg.ClientAuth = tls.RequireAndVerifyClientCert
			cfg.VerifyConnection = func(state tls.ConnectionState) error { return s.check(state.PeerCertificates, Roles()) }
		}
		return cfg, nil
	}}
}

// PeerTLS is the TLS of a client of other parts: whoever has a certificate that stands for one
// of the roles is believed, at whatever address, since parts are reached by addresses that no
// certificate names.
func (s *Source) PeerTLS(roles ...Role) *tls.Config {
	cfg := s.ClientTLS()
	cfg.MinVersion = tls.VersionTLS13
	cfg.InsecureSkipVerify = true // VerifyConnection verifies all but the host's name
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		if err := verify(state.PeerCertificates, s.current().authorities); err != nil {
			return err
		}
		return s.check(state.PeerCertificates, roles)
	}
	return cfg
}

// ClientTLS is the TLS of a client of a server that is known by its name: a router as users
// reach it, or etcd. It believes the authorities of now; Client believes those of each
// connection's beginning.
func (s *Source) ClientTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: s.current().authorities, DynamicRecordSizingDisabled: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			own := s.Certificate()
			return &own, nil
		},
	}
}

// verify checks a server's certificates, but for its name.
func verify(chain []*x509.Certificate, authorities *x509.CertPool) error {
	if len(chain) == 0 {
		return errors.New("the server showed no certificate")
	}
	intermediates := x509.NewCertPool()
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: authorities, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}

// check refuses a verified certificate that stands for none of the roles.
func (s *Source) check(chain []*x509.Certificate, roles []Role) error {
	if len(chain) == 0 {
		return errNobody
	}
	found, ok := s.rules.Identity(chain[0])
	switch {
	case !ok:
		return fmt.Errorf("%w: it has no id spiffe://%s/ROLE/NAME, and no --tls-role names it", errNobody, s.rules.TrustDomain)
	case !slices.Contains(roles, found.Role):
		return fmt.Errorf("%w: it is that of %s, and only %v belong here", errNobody, found, roles)
	}
	return nil
}

// Server are the credentials of a gRPC server; see ServerTLS.
func (s *Source) Server(members bool) credentials.TransportCredentials {
	cfg := s.ServerTLS(members, "h2")
	return &handshake{s.rules, func() *tls.Config { return cfg }}
}

// Peer are the credentials of a gRPC client of other parts; see PeerTLS.
func (s *Source) Peer(roles ...Role) credentials.TransportCredentials {
	return &handshake{s.rules, func() *tls.Config { return s.PeerTLS(roles...) }}
}

// Client are the credentials of a gRPC client; see ClientTLS.
func (s *Source) Client() credentials.TransportCredentials {
	return &handshake{s.rules, s.ClientTLS}
}

// handshake are grpc-go's credentials with a configuration of each connection's own, and with
// whom the peer's certificate stands for. It has no state, so that it need not be cloned.
type handshake struct {
	rules  Rules
	config func() *tls.Config
}

func (h *handshake) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	below := newCorked(raw)
	conn, info, err := credentials.NewTLS(h.config()).ServerHandshake(below)
	return h.named(below, conn, info, err)
}

func (h *handshake) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	below := newCorked(raw)
	conn, info, err := credentials.NewTLS(h.config()).ClientHandshake(ctx, authority, below)
	return h.named(below, conn, info, err)
}

func (h *handshake) named(below *corked, conn net.Conn, info credentials.AuthInfo, err error) (net.Conn, credentials.AuthInfo, error) {
	if err != nil {
		return nil, nil, err
	}
	found := authInfo{}
	found.TLSInfo, _ = info.(credentials.TLSInfo) // it is what credentials.NewTLS gives
	if chain := found.State.PeerCertificates; len(chain) > 0 {
		found.identity, _ = h.rules.Identity(chain[0])
	}
	return &bulk{conn, below}, found, nil
}

func (h *handshake) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (h *handshake) Clone() credentials.TransportCredentials { return h }

func (h *handshake) OverrideServerName(string) error {
	return errors.New("the server's name is that of its address")
}
