package commands

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/identity/authority"
	"github.com/tandem-serving/tandem/pkg/spelling"
)

// certsJSON is what `certs --json` prints.
type certsJSON struct {
	CA           string            `json:"ca"`
	Certificates []certificateJSON `json:"certificates"`
}

type certificateJSON struct {
	Name string `json:"name"`
	// Identity is empty for a server that is no part, such as etcd.
	Identity string    `json:"identity,omitempty"`
	Cert     string    `json:"cert"`
	Key      string    `json:"key"`
	Expires  time.Time `json:"expires"`
}

func newCertsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certs [ROLE[/NAME] | SERVER]...",
		Short: "Make a certificate authority for development, and certificates of it",
		Long: `Makes certificates, by which the parts of a mesh know each other, and their authority. The
first call makes the authority; each call makes the certificates anew. Running parts use
new certificates from their next connection on.

Without arguments it makes what the containers of deploy/compose need: one certificate
for each role, and those of the servers etcd and nats. ROLE/NAME is for one part: router,
prefill, decode, kvtransfer or operator, and its --id, or what its --id begins with before
a hyphen. Any other word is the host of a server.

Each certificate has its own folder, with tls.crt, tls.key and ca.crt as cert-manager
writes them. The authority's key has no password: in production use an authority that
protects its key, as docs/security.md says.`,
		Example: `  tandem certs
  tandem certs --dir certs prefill/prefill-7 --host 10.0.0.7
  tandem certs operator/alice --lifetime 24h`,
	}
	flags := cmd.Flags()
	dir := flags.String("dir", "certs", "folder for the authority and the certificates")
	hosts := flags.StringSlice("host", nil, "name or IP address by which clients reach the part, beside localhost and its own name")
	lifetime := flags.Duration("lifetime", authority.DefaultLifetime, "how long the certificates are valid")
	domain := flags.String("trust-domain", identity.DefaultTrustDomain, "trust domain of the ids in the certificates: the parts' --tls-trust-domain")
	mode := flags.String("key-mode", "0600", "permissions of the private keys; 0644 for containers that run as another user, whom the folder's own permissions do not stop")
	asJSON := addJSON(cmd, "print one JSON object: ca, certificates (name, identity, cert, key, expires)")
	onlyOnCommandLine(cmd, "dir", "host", "lifetime", "trust-domain", "key-mode")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		keyMode, err := strconv.ParseUint(*mode, 8, 9)
		switch {
		case err != nil:
			return usageError(cmd, fmt.Sprintf("--key-mode: %q is not an octal number such as 0600", *mode))
		case *lifetime < time.Minute || *lifetime > authority.Lifetime:
			return usageError(cmd, fmt.Sprintf("--lifetime: %s is outside 1m to %s", *lifetime, authority.Lifetime))
		}
		if len(args) == 0 {
			for _, role := range identity.Roles() {
				args = append(args, string(role))
			}
			args = append(args, "etcd", "nats")
		}
		requests := make([]authority.Request, len(args))
		names := make([]string, len(args))
		for i, arg := range args {
			if names[i], requests[i], err = certificateRequest(arg); err != nil {
				return usageError(cmd, err.Error())
			}
			if other := slices.Index(names[:i], names[i]); other >= 0 {
				return usageError(cmd, fmt.Sprintf("%q and %q would both be written to the folder %s: use two names", args[other], arg, filepath.Join(*dir, names[i])))
			}
			requests[i].TrustDomain, requests[i].Lifetime = *domain, *lifetime
			requests[i].Hosts = append([]string{names[i], "localhost", "127.0.0.1", "::1"}, *hosts...)
		}
		a, err := authority.Open(*dir)
		if err != nil {
			return err
		}
		result := certsJSON{CA: filepath.Join(*dir, authority.CAFile)}
		for i, r := range requests {
			made := certificateJSON{
				Name: names[i], Cert: filepath.Join(*dir, names[i], authority.CertFile), Key: filepath.Join(*dir, names[i], authority.KeyFile),
				Expires: time.Now().Add(r.Lifetime).UTC().Truncate(time.Second),
			}
			if r.Identity.Role != "" {
				made.Identity = "spiffe://" + r.TrustDomain + "/" + r.Identity.String()
			}
			if err := a.Issue(filepath.Join(*dir, names[i]), r, fs.FileMode(keyMode)); err != nil {
				return err
			}
			result.Certificates = append(result.Certificates, made)
		}
		return show(cmd, *asJSON, result, printCerts)
	}
	return cmd
}

// certificateRequest is what an argument asks for, and the name of its folder.
func certificateRequest(arg string) (name string, _ authority.Request, _ error) {
	role, name, named := strings.Cut(arg, "/")
	isRole := slices.Contains(identity.Roles(), identity.Role(role))
	switch {
	case named && !isRole:
		return "", authority.Request{}, fmt.Errorf("%q: %q is no role: give one of %v", arg, role, identity.Roles())
	case !named:
		name = role
	}
	if !identity.ValidName(name) || name == authority.CAFile || name == authority.CAKeyFile {
		return "", authority.Request{}, fmt.Errorf("%q: %q is not a name for a certificate", arg, name)
	}
	if nearest, near := spelling.Nearest(name, roleNames()); near && !isRole {
		return "", authority.Request{}, fmt.Errorf("%q is no role: did you mean %s, or %[2]s/NAME for one part? For a server on a host of this name give another word, and the host by --host %[1]s", name, nearest)
	}
	if !isRole {
		return name, authority.Request{CommonName: name, ServerOnly: name == "nats"}, nil
	}
	return name, authority.Request{Identity: identity.Identity{Role: identity.Role(role), Name: name}}, nil
}

func roleNames() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, role := range identity.Roles() {
			if !yield(string(role)) {
				return
			}
		}
	}
}

func printCerts(w io.Writer, r certsJSON) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "authority\t%s\t\n", r.CA)
	for _, c := range r.Certificates {
		fmt.Fprintf(t, "%s\t%s\t%s\n", c.Name, c.Cert, cmp.Or(c.Identity, "a server's: no part of the mesh"))
	}
	return t.Flush()
}
