package signals

import "github.com/spf13/pflag"

// RegisterFlags adds the flag, with a default that works beside a NATS server of this
// machine.
func (cfg *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&cfg.URLs, "nats", []string{"nats://127.0.0.1:4222"}, "addresses of NATS")
}
