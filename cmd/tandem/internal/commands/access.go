package commands

import (
	"github.com/spf13/cobra"
	"google.golang.org/grpc/credentials"
)

// access says how a command knows the router that it calls, and what it shows of itself.
type access struct {
	tls    *clientTLS
	apiKey string
}

// add adds the flags.
func (a *access) add(cmd *cobra.Command) {
	a.tls = addClientTLS(cmd)
	cmd.Flags().StringVar(&a.apiKey, "api-key", "", "API key or token, if the router asks for one (better: $TANDEM_API_KEY, which other users of the machine cannot see)")
}

// caller is who calls, as a connection is made with it. The zero value is nobody, in plain text.
type caller struct {
	transport credentials.TransportCredentials // nil: nothing is encrypted
	apiKey    string
}

// open reads the files. The error is one of the command line.
func (a *access) open(cmd *cobra.Command) (caller, error) {
	transport, err := a.tls.credentials(cmd)
	return caller{transport, a.apiKey}, err
}
