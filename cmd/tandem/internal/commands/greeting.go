package commands

import (
	"fmt"

	"github.com/spf13/cobra"
)

// greet says what to type first.
func greet(cmd *cobra.Command) error {
	program := cmd.Root().DisplayName()
	_, err := fmt.Fprintf(cmd.OutOrStdout(), `Tandem serves large language models with prefill and decode on separate workers.

Start a mesh on this machine, with the model that comes along:

  %[1]s up

Then, in another terminal:

  %[1]s chat
  %[1]s generate --prompt "Once upon a time" --max-tokens 60
  curl http://%[2]s/v1/completions -d '{"prompt": "Once upon a time", "max_tokens": 60}'
  %[1]s workers

'%[1]s --help' lists all commands. Add --help to one to read about it: '%[1]s up --help'.
`, program, defaultHTTP)
	return err
}

// defaultHTTP is where 'tandem up' serves OpenAI's API.
const defaultHTTP = "127.0.0.1:8080"
