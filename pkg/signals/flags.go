package signals

import (
	"fmt"

	"github.com/spf13/pflag"
)

// RegisterFlags adds the flags, with a default that works beside a NATS server of this
// machine.
func (cfg *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&cfg.URLs, "nats", []string{"nats://127.0.0.1:4222"}, "addresses of NATS")
	fs.StringVar(&cfg.User, "nats-user", "", "user at NATS, where it asks for one and certificates do not say it")
	fs.StringVar(&cfg.PasswordFile, "nats-password-file", "", "file with the password of --nats-user")
	fs.StringVar(&cfg.CredentialsFile, "nats-creds", "", "file of credentials (.creds) for NATS, instead of a user and a password")
	cfg.TLS.RegisterClientFlags(fs, "nats")
}

// ValidateFlags checks what flags set, but for that there is a server: 'up' runs its own. The
// error begins with the flag.
func (cfg *Config) ValidateFlags() error {
	if err := cfg.validateURLs(); err != nil {
		return fmt.Errorf("--nats: %w", err)
	}
	return cfg.validateSecurity()
}
