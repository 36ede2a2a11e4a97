package identity

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/spf13/pflag"
)

// Config says which files a part's TLS is made of. The zero value: no TLS.
type Config struct {
	// CertFile has the part's certificate with its intermediates, KeyFile its private key and
	// CAFile the authorities whose certificates are trusted, in PEM.
	CertFile, KeyFile, CAFile string
	// TrustDomain is that of SPIFFE ids. Empty: DefaultTrustDomain.
	TrustDomain string
	// NameRules give roles to certificates without a SPIFFE id, as ROLE=PATTERN.
	NameRules []string
	// FlagPrefix is behind the hyphens of the flags that errors name, such as "tls-" of
	// --tls-cert.
	FlagPrefix string
}

// DefaultTrustDomain is that of the certificates that 'tandem certs' makes.
const DefaultTrustDomain = "tandem"

// RegisterFlags adds the flags of a part: --tls-….
func (cfg *Config) RegisterFlags(fs *pflag.FlagSet) {
	cfg.FlagPrefix = "tls-"
	fs.StringVar(&cfg.CertFile, "tls-cert", "", "file with this part's certificate (PEM), which says its role; all parts then need one, and it is read again when it changes")
	fs.StringVar(&cfg.KeyFile, "tls-key", "", "file with the private key of --tls-cert")
	fs.StringVar(&cfg.CAFile, "tls-ca", "", "file with the authorities whose certificates this part trusts")
	fs.StringVar(&cfg.TrustDomain, "tls-trust-domain", DefaultTrustDomain, "trust domain of the ids in certificates, spiffe://TRUST-DOMAIN/ROLE/NAME")
	fs.StringSliceVar(&cfg.NameRules, "tls-role", nil, "role of certificates without such an id, by URI or DNS name, or common name if there is neither: ROLE=PATTERN, such as prefill=*.prefill.example.com")
}

// RegisterClientFlags adds the flags of a client of a server, such as etcd, whose name begins
// them. Without any the part's own certificate and authorities are used.
func (cfg *Config) RegisterClientFlags(fs *pflag.FlagSet, server string) {
	cfg.FlagPrefix = server + "-"
	fs.StringVar(&cfg.CAFile, server+"-ca", "", "file with the authorities that "+server+"'s certificate may be of (default: that of --tls-ca, or the system's)")
	fs.StringVar(&cfg.CertFile, server+"-cert", "", "file with the certificate to show "+server+" (default: that of --tls-cert)")
	fs.StringVar(&cfg.KeyFile, server+"-key", "", "file with the private key of --"+server+"-cert")
}

// Enabled says whether TLS is asked for.
func (cfg Config) Enabled() bool { return cfg.CertFile+cfg.KeyFile+cfg.CAFile != "" }

// Validate checks what flags set, but reads no file. The error begins with the flag.
func (cfg Config) Validate() error {
	if _, err := cfg.Rules(); err != nil {
		return fmt.Errorf("--tls-role: %w", err)
	}
	if !cfg.Enabled() {
		return nil
	}
	for _, file := range []struct{ flag, name string }{{"cert", cfg.CertFile}, {"key", cfg.KeyFile}, {"ca", cfg.CAFile}} {
		if file.name == "" {
			return errors.New(cfg.flag(file.flag) + ": is missing: TLS needs --tls-cert, --tls-key and --tls-ca; 'tandem certs' makes all three")
		}
	}
	return nil
}

func (cfg Config) flag(name string) string { return "--" + cfg.FlagPrefix + name }

// ValidateClient is Validate for a client, which may have authorities alone.
func (cfg Config) ValidateClient() error {
	switch {
	case cfg.CertFile != "" && cfg.KeyFile == "":
		return errors.New(cfg.flag("key") + ": is missing: a certificate needs its key")
	case cfg.CertFile == "" && cfg.KeyFile != "":
		return errors.New(cfg.flag("cert") + ": is missing: a key needs its certificate")
	}
	return nil
}

// Rules are those that the configuration asks for.
func (cfg Config) Rules() (Rules, error) {
	rules := Rules{TrustDomain: cmp.Or(cfg.TrustDomain, DefaultTrustDomain)}
	for _, text := range cfg.NameRules {
		rule, err := ParseNameRule(text)
		if err != nil {
			return Rules{}, err
		}
		rules.Names = append(rules.Names, rule)
	}
	return rules, nil
}
