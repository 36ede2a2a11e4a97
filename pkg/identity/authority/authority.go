// Package authority is a small certificate authority for development and for one machine: it
// signs the certificates of a mesh's parts and writes them in cert-manager's file layout.
//
// The commands and tests import it. It starts no goroutines. Its own key lies in a file without
// a password, so it is no authority for production.
package authority

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pkg/identity"
)

// Names of files, as cert-manager writes them into a Secret.
const (
	CertFile = "tls.crt"
	KeyFile  = "tls.key"
	CAFile   = "ca.crt"
	// CAKeyFile is the authority's own key, beside CAFile in its folder.
	CAKeyFile = "ca.key"
)

const (
	// Lifetime is that of the authority's own certificate.
	Lifetime = 10 * 365 * 24 * time.Hour
	// DefaultLifetime is that of the certificates that it signs.
	DefaultLifetime = 90 * 24 * time.Hour
	// backdated allows for clocks that are slow.
	backdated = 5 * time.Minute
)

// Authority signs certificates. It is safe for concurrent use.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

// Request is what a certificate is to say.
type Request struct {
	// Identity of the part; the zero value: nobody, as for an etcd or NATS server.
	Identity identity.Identity
	// TrustDomain of the SPIFFE id. Empty: identity.DefaultTrustDomain.
	TrustDomain string
	// CommonName; empty: the role, which is what etcd and NATS know the part by.
	CommonName string
	// ServerOnly: it is no client's certificate.
	ServerOnly bool
	// Hosts are names and IP addresses by which clients reach it.
	Hosts []string
	// NotBefore and Lifetime say how long it is valid. Zero: from now, DefaultLifetime.
	NotBefore time.Time
	Lifetime  time.Duration
}

// Open reads the authority of a folder; if there is none it makes one, and the folder.
func Open(folder string) (*Authority, error) {
	a, err := read(folder)
	if !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	if _, err := os.Stat(filepath.Join(folder, CAFile)); err == nil {
		return nil, fmt.Errorf("%s has %s but not its key, %s: choose another folder", folder, CAFile, CAKeyFile)
	}
	if a, err = New(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	key, err := encodeKey(a.key)
	if err != nil {
		return nil, err
	}
	if err := write(filepath.Join(folder, CAKeyFile), key, 0o600); err != nil {
		return nil, err
	}
	return a, write(filepath.Join(folder, CAFile), a.pem, 0o644)
}

// read reads the authority of a folder; the error wraps fs.ErrNotExist if there is none.
func read(folder string) (*Authority, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(folder, CAFile), filepath.Join(folder, CAKeyFile))
	if err != nil {
		return nil, fmt.Errorf("read the authority in %s: %w", folder, err)
	}
	key, is := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !is || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("read the authority in %s: 'tandem certs' did not make it: choose another folder", folder)
	}
	return &Authority{certificate: pair.Leaf, key: key, pem: encode("CERTIFICATE", pair.Leaf.Raw)}, nil
}

// New makes an authority that lies in no file.
func New() (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "tandem development authority"},
		NotBefore: now.Add(-backdated), NotAfter: now.Add(Lifetime),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &Authority{certificate: certificate, key: key, pem: encode("CERTIFICATE", der)}, nil
}

// PEM is the authority's certificate.
func (a *Authority) PEM() []byte { return a.pem }

// Sign makes a key and a certificate for it, in PEM.
func (a *Authority) Sign(r Request) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, r.template(), a.certificate, private.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign a certificate for %s: %w", r.Identity, err)
	}
	if key, err = encodeKey(private); err != nil {
		return nil, nil, err
	}
	return encode("CERTIFICATE", der), key, nil
}

// template is the certificate that is asked for, unsigned.
func (r Request) template() *x509.Certificate {
	if r.NotBefore.IsZero() {
		r.NotBefore = time.Now().Add(-backdated)
	}
	r.Lifetime = cmp.Or(r.Lifetime, DefaultLifetime)
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: r.CommonName}, NotBefore: r.NotBefore, NotAfter: r.NotBefore.Add(r.Lifetime),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if r.ServerOnly {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	if who := r.Identity; who != (identity.Identity{}) {
		template.URIs = []*url.URL{{Scheme: "spiffe", Host: cmp.Or(r.TrustDomain, identity.DefaultTrustDomain), Path: "/" + who.String()}}
		template.Subject.CommonName = cmp.Or(r.CommonName, string(who.Role))
	}
	for _, host := range r.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return template
}

// Issue signs a certificate and writes it into a folder, which it makes: tls.crt, tls.key and
// ca.crt. Each file is replaced as a whole. The key is for the folder's owner alone, unless the
// mode of keys says otherwise.
func (a *Authority) Issue(folder string, r Request, keyMode fs.FileMode) error {
	certificate, key, err := a.Sign(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, file := range []struct {
		name string
		data []byte
		mode fs.FileMode
	}{{CAFile, a.pem, 0o644}, {KeyFile, key, keyMode}, {CertFile, certificate, 0o644}} {
		if err := write(filepath.Join(folder, file.name), file.data, file.mode); err != nil {
			return err
		}
	}
	return nil
}

// Renew is Issue, unless the folder has a certificate and key that say as much and are valid for
// at least half as long as new ones would be.
func (a *Authority) Renew(folder string, r Request, keyMode fs.FileMode) error {
	if pair, err := tls.LoadX509KeyPair(filepath.Join(folder, CertFile), filepath.Join(folder, KeyFile)); err == nil && a.serves(pair.Leaf, r) {
		ca, err := os.ReadFile(filepath.Join(folder, CAFile))
		if err == nil && bytes.Equal(ca, a.pem) {
			return nil
		}
	}
	return a.Issue(folder, r, keyMode)
}

// serves says whether a certificate can stand for one that is asked for.
func (a *Authority) serves(have *x509.Certificate, r Request) bool {
	want := r.template()
	missing := func(host string) bool { return have.VerifyHostname(host) != nil }
	return have.CheckSignatureFrom(a.certificate) == nil &&
		have.Subject.CommonName == want.Subject.CommonName && slices.EqualFunc(have.URIs, want.URIs, func(x, y *url.URL) bool { return *x == *y }) &&
		slices.Equal(have.ExtKeyUsage, want.ExtKeyUsage) && !slices.ContainsFunc(r.Hosts, missing) &&
		time.Until(have.NotAfter) > want.NotAfter.Sub(want.NotBefore)/2 && time.Now().After(have.NotBefore)
}

// Config is how a part uses what Issue wrote into a folder.
func Config(folder string) identity.Config {
	return identity.Config{
		CertFile: filepath.Join(folder, CertFile), KeyFile: filepath.Join(folder, KeyFile), CAFile: filepath.Join(folder, CAFile),
	}
}

// write replaces a file as a whole.
func write(name string, data []byte, mode fs.FileMode) (err error) {
	file, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	_, err = file.Write(data)
	if err = errors.Join(err, file.Chmod(mode), file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return os.Rename(file.Name(), name)
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return encode("PRIVATE KEY", der), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// serial is a random number of 127 bits.
func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil { // crypto/rand never fails
		return big.NewInt(1)
	}
	return n
}
