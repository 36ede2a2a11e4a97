package signals

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/tandem-serving/tandem/pkg/boundedfile"
	"github.com/tandem-serving/tandem/pkg/identity"
)

// security are the options by which the client knows the server, and the server the client.
func (cfg Config) security(log *slog.Logger) (options []nats.Option, err error) {
	if slices.ContainsFunc(cfg.URLs, func(address string) bool {
		return strings.HasPrefix(address, "tls:") || strings.HasPrefix(address, "wss:")
	}) {
		source, err := identity.Open(cfg.TLS, log)
		if err != nil {
			return nil, err
		}
		options = append(options, nats.ClientTLSConfig(
			func() (tls.Certificate, error) { return source.Certificate(), nil },
			func() (*x509.CertPool, error) { return source.Authorities(), nil },
		))
	}
	switch {
	case cfg.CredentialsFile != "":
		options = append(options, nats.UserCredentials(cfg.CredentialsFile))
	case cfg.User != "":
		if _, err := cfg.password(); err != nil {
			return nil, err
		}
		options = append(options, nats.UserInfoHandler(func() (user, password string) {
			password, err := cfg.password()
			if err != nil {
				log.Warn("the password for NATS cannot be read", slog.Any("error", err))
			}
			return cfg.User, password
		}))
	}
	return options, nil
}

func (cfg Config) password() (string, error) {
	password, err := boundedfile.ReadSecret(cfg.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("--nats-password-file: %w", err)
	}
	return password, nil
}

func (cfg Config) validateSecurity() error {
	switch {
	case (cfg.User == "") != (cfg.PasswordFile == ""):
		return errors.New("--nats-user: give it together with --nats-password-file")
	case cfg.User != "" && cfg.CredentialsFile != "":
		return errors.New("--nats-creds: leave it out, or --nats-user")
	}
	return cfg.TLS.ValidateClient()
}

// WithoutPasswords lists URLs of NATS servers for people, without users, passwords and tokens.
func WithoutPasswords(urls []string) string {
	shown := make([]string, len(urls))
	for i, address := range urls {
		shown[i] = withoutPassword(address)
	}
	return strings.Join(shown, ", ")
}

// withoutPassword is an address with its password, or token, taken out.
func withoutPassword(address string) string {
	if parsed, err := url.Parse(address); err == nil && parsed.User != nil {
		parsed.User = url.User("xxxxx")
		return parsed.String()
	}
	if before, after, found := strings.Cut(address, "@"); found { // no URL, but it may hold one
		scheme, _, _ := strings.Cut(before, "://")
		return scheme + "://xxxxx@" + after
	}
	return address
}
