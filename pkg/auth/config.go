package auth

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/spf13/pflag"
)

// Values of Config.Mode.
const (
	// None lets everybody in.
	None = "none"
	// Required asks everybody for a credential.
	Required = "required"
)

// Config says who may call a router.
type Config struct {
	// Mode is None or Required; empty: None where only this machine can call, else Required.
	Mode string
	// Insecure allows None, and credentials in the clear, where others can call.
	Insecure bool
	// PublishedOn is the host on which the ports of the container that this runs in are
	// published, if it is in one: who can call goes by it. Empty: by where a router listens.
	PublishedOn string
	// OIDC is the issuer of tokens, as a URL, or a file with its discovery document; empty:
	// there are API keys only.
	OIDC string
	// Audience is what tokens have to be made for.
	Audience string
	// TenantClaim is the claim of a token that names the tenant.
	TenantClaim string
}

// RegisterFlags adds the flags.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Mode, "auth", "", "who may call the router: none (everybody) or required (API keys and tokens); default: none if it listens on loopback only, else required")
	fs.BoolVar(&c.Insecure, "insecure", false, "let other machines call the router without TLS, and, unless --auth required is given, without a key")
	fs.StringVar(&c.PublishedOn, "published-on", "", "in a container: the host on which its ports are published, such as 127.0.0.1; which machines can call goes by it (default: by where the router listens)")
	fs.StringVar(&c.OIDC, "oidc", "", "issuer of tokens (JWT) that clients may send: its URL, or a file with its discovery document; empty: API keys only")
	fs.StringVar(&c.Audience, "oidc-audience", "", "audience (aud) that tokens must be made for")
	fs.StringVar(&c.TenantClaim, "oidc-tenant-claim", "tenant", "claim of a token that names the tenant")
}

// Validate checks what flags set. The error begins with the flag.
func (c Config) Validate() error {
	switch {
	case c.Mode != "" && c.Mode != None && c.Mode != Required:
		return fmt.Errorf("--auth: %q is neither none nor required", c.Mode)
	case c.OIDC == "":
		return nil
	case c.Audience == "":
		return errors.New("--oidc-audience: is missing: without it, a token that was made for another service would be taken")
	case c.TenantClaim == "":
		return errors.New("--oidc-tenant-claim: is empty: tokens have to name their tenant")
	}
	if strings.Contains(c.OIDC, "://") {
		if err := checkURL(c.OIDC); err != nil {
			return fmt.Errorf("--oidc: %w", err)
		}
	}
	return nil
}

// checkURL refuses what would be asked for keys over a network without TLS.
func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("%q is not a URL such as https://id.example.com", text)
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return fmt.Errorf("%s is not https: others could answer with keys of their own", text)
	}
	return nil
}

// Asks says whether callers are asked who they are at a router that listens on these addresses,
// "HOST:PORT" or "unix:///PATH", each with its flag; encrypted: with TLS. The error says that
// everybody could come in, or read the credentials of who does, though nobody said so.
func (c Config) Asks(listens map[string]string, encrypted bool) (bool, error) {
	open := ""
	for flag, address := range listens {
		if c.Exposes(address) && (open == "" || flag < open) {
			open = flag
		}
	}
	switch {
	case open == "" || c.Insecure:
		return c.Mode == Required, nil
	case c.Mode == None:
		return false, fmt.Errorf("--auth none: others can reach --%s %s, so everybody could come in: pass --auth required, or --insecure if that is meant", open, listens[open])
	case !encrypted:
		return false, fmt.Errorf("--%s %s: other machines can reach it, and keys and prompts would cross the network in the clear: pass --tls to 'up', --tls-cert to 'serve', or --auth required --insecure where a proxy encrypts", open, listens[open])
	}
	return true, nil
}

// Exposes says whether others than this machine can reach a router that listens on an address.
func (c Config) Exposes(address string) bool {
	return public(address) && (c.PublishedOn == "" || !isLoopback(c.PublishedOn))
}

func public(address string) bool {
	if address == "" || strings.HasPrefix(address, "unix:") {
		return false
	}
	host, _, err := net.SplitHostPort(address)
	return err != nil || !isLoopback(host)
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
