package commands

import (
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
)

// credentials are what a command shows a router that asks who calls.
type credentials struct{ apiKey string }

// add adds the flag.
func (c *credentials) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.apiKey, "api-key", "", "API key or token, if the router asks for one (better: $TANDEM_API_KEY, which other users of the machine cannot see)")
}

// dial connects to a router.
func (c *credentials) dial(addr string) (*grpc.ClientConn, error) { return dial(addr, c.apiKey) }
