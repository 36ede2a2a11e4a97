package commands

import (
	"crypto/tls"
	"errors"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"github.com/tandem-serving/tandem/pkg/identity"
)

// systemAuthorities is the value of --ca for those that the system trusts.
const systemAuthorities = "system"

// clientTLS says how a command knows the server that it calls, and shows who it is itself.
type clientTLS struct{ ca, cert, key string }

// addClientTLS adds the flags.
func addClientTLS(cmd *cobra.Command) *clientTLS {
	t := new(clientTLS)
	fs := cmd.Flags()
	fs.StringVar(&t.ca, "ca", "", "encrypt the connection, and trust the server if its certificate is of the authorities in this file, or of the system's: system")
	fs.StringVar(&t.cert, "cert", "", "file with the certificate to show the server, such as an operator's; needs --ca")
	fs.StringVar(&t.key, "key", "", "file with the private key of --cert (default: the file beside it that ends in .key)")
	return t
}

// open reads the files; nil: nothing is encrypted. The error is one of the command line.
func (t *clientTLS) open(cmd *cobra.Command) (*identity.Source, error) {
	switch {
	case t.ca == "" && t.cert+t.key != "":
		return nil, usageError(cmd, "--cert: needs --ca, the file with the authorities that the server's certificate is of: 'tandem certs' and 'tandem up --tls' call it ca.crt")
	case t.ca == "":
		return nil, nil
	}
	source, err := identity.Open(t.files(), nil)
	if err != nil {
		return nil, usageError(cmd, err.Error())
	}
	return source, nil
}

// files are those of the flags.
func (t *clientTLS) files() identity.Config {
	cfg := identity.Config{CertFile: t.cert, KeyFile: t.key}
	if t.ca != systemAuthorities {
		cfg.CAFile = t.ca
	}
	if cfg.KeyFile == "" && cfg.CertFile != "" {
		cfg.KeyFile = strings.TrimSuffix(cfg.CertFile, ".crt") + ".key"
	}
	return cfg
}

// credentials are those of gRPC connections; nil: nothing is encrypted.
func (t *clientTLS) credentials(cmd *cobra.Command) (credentials.TransportCredentials, error) {
	source, err := t.open(cmd)
	if source == nil || err != nil {
		return nil, err
	}
	return source.Client(), nil
}

// config is that of HTTP connections; nil: Go's own.
func (t *clientTLS) config(cmd *cobra.Command) (*tls.Config, error) {
	source, err := t.open(cmd)
	if source == nil || err != nil {
		return nil, err
	}
	return source.ClientTLS(), nil
}

// wantsTLS says what is wrong with the encryption of a connection that failed; empty: nothing.
func wantsTLS(err error) string {
	message := statusOf(err).Message()
	switch {
	case statusOf(err).Code() != codes.Unavailable:
		return ""
	case strings.Contains(message, "first record does not look like a TLS handshake"):
		return "the server does not encrypt its connections: leave --ca out, or start it with --tls"
	case strings.Contains(message, "authentication handshake failed: "):
		_, problem, _ := strings.Cut(message, "authentication handshake failed: ")
		return notTrusted(strings.TrimSuffix(problem, `"`))
	}
	return refusesCertificate(message)
}

// wantsTLSByHTTP is wantsTLS of an HTTP request.
func wantsTLSByHTTP(err error) string {
	if errors.Is(err, http.ErrSchemeMismatch) || strings.Contains(err.Error(), "first record does not look like a TLS handshake") {
		return "the server does not encrypt its connections: ask it by http://, or start it with --tls"
	}
	if untrusted, is := errors.AsType[*tls.CertificateVerificationError](err); is {
		return notTrusted(untrusted.Error())
	}
	return refusesCertificate(err.Error())
}

func notTrusted(problem string) string {
	return "the server is not trusted (" + problem + "): pass the authority of its certificate with --ca, and a name that the certificate has with --addr or --control"
}

// refusesCertificate says what a server has against this side's certificate; empty: nothing.
func refusesCertificate(message string) string {
	_, problem, refused := strings.Cut(message, "remote error: tls: ")
	if !refused {
		return ""
	}
	return "the server refuses the certificate (" + strings.TrimSuffix(problem, `"`) + "): pass one of its authority with --cert that has not expired"
}
