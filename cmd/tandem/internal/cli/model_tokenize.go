package cli

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
)

func newModelTokenizeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tokenize [DIR]",
		Short: "Turn text on standard input into token ids",
		Long: `Reads text from standard input, to the byte, and prints its token ids, by the
tokenizer.json in DIR (default: the bundled model's).`,
		Example: `  printf 'Once upon a time' | tandem model tokenize models/fable --json`,
		Args:    optionalDir,
	}
	noSpecial := cmd.Flags().Bool("no-special", false, "do not add the tokens that the tokenizer puts around a text")
	asJSON := addJSON(cmd, "print one JSON object {\"token_ids\":[…]}")
	onlyOnCommandLine(cmd, "no-special")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		dir, err := modelDir(args)
		if err != nil {
			return err
		}
		opened, err := modeldir.OpenTokenizer(dir)
		if err != nil {
			return err
		}
		text, err := readText(cmd, "text", "the text")
		if err != nil {
			return routerFailure(err, "", false)
		}
		ids := opened.Encode(text, !*noSpecial)
		if *asJSON {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(struct {
				TokenIDs []int32 `json:"token_ids"`
			}{append([]int32{}, ids...)})
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.Trim(fmt.Sprint(ids), "[]"))
		return err
	}
	return cmd
}
