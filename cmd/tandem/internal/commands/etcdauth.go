package commands

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/pkg/membership"
)

// etcdAuthTimeout bounds the whole.
const etcdAuthTimeout = 30 * time.Second

func newEtcdAuthCommand() *cobra.Command {
	var etcd membership.Config
	cmd := &cobra.Command{
		Use:   "etcd-auth",
		Short: "Let each part do no more at etcd than it needs",
		Long: `Gives the users router, prefill, decode and kvtransfer at etcd the rights that parts of
these roles need, makes operator its administrator, and has etcd ask everybody who they
are. Certificates say it: their common names are the users, as 'tandem certs' makes them.
etcd has to run with TLS and --client-cert-auth.

It may be called again, with the certificate of an operator.`,
		Example: `  tandem etcd-auth --etcd https://127.0.0.1:2379 --etcd-ca certs/ca.crt \
    --etcd-cert certs/operator/tls.crt --etcd-key certs/operator/tls.key`,
		Args: exactly(),
	}
	etcd.RegisterFlags(cmd.Flags())
	_ = cmd.Flags().MarkHidden("lease-ttl") // it exists, but nothing is leased here
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := etcd.ValidateFlags(); err != nil {
			return usageError(cmd, err.Error())
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), etcdAuthTimeout)
		defer cancel()
		if err := membership.SetRights(ctx, etcd, slog.New(slog.DiscardHandler)); err != nil {
			return fmt.Errorf("%w: does etcd run at %s, with TLS and --client-cert-auth, and is the certificate an operator's?", err, etcd.Endpoints[0])
		}
		fmt.Fprintln(cmd.OutOrStdout(), "etcd asks for certificates: each part may do what it needs, and operators everything")
		return nil
	}
	return cmd
}
