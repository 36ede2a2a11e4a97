package commands

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/membership"
)

// etcdAuthJSON is what `etcd-auth --json` prints.
type etcdAuthJSON struct {
	Etcd []string `json:"etcd"`
	// Users have the rights of their roles from now on.
	Users []string `json:"users"`
}

// etcdAuthTimeout bounds the whole, and etcdAuthReach how long etcd may take to answer at all.
const (
	etcdAuthTimeout = 30 * time.Second
	etcdAuthReach   = 3 * time.Second
)

func newEtcdAuthCommand() *cobra.Command {
	var etcd membership.Config
	cmd := &cobra.Command{
		Use:   "etcd-auth",
		Short: "Give each part no more rights at etcd than it needs",
		Long: `Makes etcd's users router, prefill, decode and kvtransfer, each with the rights that this
role needs, and the administrator operator. Then it turns etcd's authentication on. etcd
takes a user's name from the common name of its certificate, as 'tandem certs' makes them,
so it has to run with TLS and --client-cert-auth.

You can run it again, with the certificate of an operator.`,
		Example: `  tandem etcd-auth --etcd https://127.0.0.1:2379 --etcd-ca certs/ca.crt \
    --etcd-cert certs/operator/tls.crt --etcd-key certs/operator/tls.key`,
		Args: exactly(),
	}
	etcd.RegisterFlags(cmd.Flags())
	asJSON := addJSON(cmd, "print one JSON object: etcd, users")
	_ = cmd.Flags().MarkHidden("lease-ttl") // it exists, but nothing is leased here
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(etcd.Endpoints) == 0 {
			return usageError(cmd, "--etcd: name at least one address")
		}
		if err := etcd.ValidateFlags(); err != nil {
			return usageError(cmd, err.Error())
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), etcdAuthTimeout)
		defer cancel()
		if err := reachEtcd(ctx, etcd); err != nil {
			return fmt.Errorf("%w: check --etcd, that etcd runs there with TLS and --client-cert-auth, and that the certificate is an operator's", err)
		}
		if err := membership.SetRights(ctx, etcd, slog.New(slog.DiscardHandler)); err != nil {
			return fmt.Errorf("%w: does etcd run at %s, with TLS and --client-cert-auth, and is the certificate an operator's?", err, etcd.Endpoints[0])
		}
		result := etcdAuthJSON{Etcd: etcd.Endpoints}
		for _, role := range identity.Roles() {
			result.Users = append(result.Users, string(role))
		}
		return show(cmd, *asJSON, result, func(w io.Writer, r etcdAuthJSON) error {
			_, err := fmt.Fprintf(w, "etcd at %s asks for certificates: %s do what they need, and operators everything\n",
				strings.Join(r.Etcd, ", "), strings.Join(r.Users[:len(r.Users)-1], ", "))
			return err
		})
	}
	return cmd
}

// reachEtcd is an error if etcd does not answer soon.
func reachEtcd(ctx context.Context, etcd membership.Config) error {
	ctx, cancel := context.WithTimeout(ctx, etcdAuthReach)
	defer cancel()
	client, err := membership.Connect(ctx, etcd, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return client.Close()
}
