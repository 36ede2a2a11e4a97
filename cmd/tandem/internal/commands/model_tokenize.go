package commands

import (
	"bufio"
	"encoding/json"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// maxTokenizeBytes bounds what model tokenize reads: the ids take some ten times as
// much memory, if the text has no place to cut.
const maxTokenizeBytes = 512 << 20

func newModelTokenizeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tokenize [DIR]",
		Short: "Turn text on standard input into token ids",
		Long: `Reads text from standard input, byte for byte, and prints its token ids. It uses the
tokenizer.json in DIR (default: the bundled model's).`,
		Example: `  printf 'Once upon a time' | tandem model tokenize models/fable --json`,
		Args:    atMostOne("directory"),
	}
	noSpecial := cmd.Flags().Bool("no-special", false, "do not add the tokens that the tokenizer puts around a text")
	asJSON := addJSON(cmd, "print one JSON object {\"token_ids\":[…]}")
	onlyOnCommandLine(cmd, "no-special")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		dir, err := modelDir(args)
		if err != nil {
			return err
		}
		opened, err := tokenizer.Open(dir)
		if err != nil {
			return err
		}
		text, err := readText(cmd, "text", "the text", maxTokenizeBytes)
		if err != nil {
			return routerFailure(err, "", false)
		}
		ids, err := opened.EncodeContext(cmd.Context(), text, !*noSpecial, 0)
		if err != nil {
			return interruptedOr(cmd.Context(), err)
		}
		if *asJSON {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(struct {
				TokenIDs []int32 `json:"token_ids"`
			}{append([]int32{}, ids...)})
		}
		out := bufio.NewWriter(cmd.OutOrStdout())
		for i, id := range ids {
			if i > 0 {
				_ = out.WriteByte(' ') // Flush returns the error
			}
			_, _ = out.WriteString(strconv.Itoa(int(id)))
		}
		_ = out.WriteByte('\n')
		return out.Flush()
	}
	return cmd
}
