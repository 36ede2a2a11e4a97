package commands

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	bench "github.com/tandem-serving/tandem/cmd/tandem/bench/tokenizer"
	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

const maxBenchTextBytes = 256 << 20

func newBenchTokenizerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tokenizer",
		Short: "Measure a model's tokenizer, in tokens per second on one core",
		Long: `Encodes and decodes a text with a model's tokenizer.json, over and over, in parts of
16 KiB, on each thread. For comparison, the same core scans the text: it reads every
character and looks up its class in a table. encode_of_scan is the rate of encoding as
a share of the rate of that scan.

On Linux, seconds are processor time, so other programs do not count.`,
		Example: `  tandem bench tokenizer
  tandem bench tokenizer --model models/fable --text README.md --json
  cat docs/*.md | tandem bench tokenizer --text -`,
		Args: exactly(),
	}
	fs := cmd.Flags()
	model := fs.String("model", "", "directory with a tokenizer.json (default: the bundled model's)")
	text := fs.String("text", "", "file with the text, or - for standard input (default: some English prose)")
	plan := bench.Plan{}
	fs.DurationVar(&plan.Duration, "duration", 6*time.Second, "how long to measure")
	fs.IntVar(&plan.Threads, "threads", 1, "number of threads that encode")
	asJSON := addBenchJSON(cmd, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if plan.Threads < 1 || plan.Duration <= 0 {
			return usageError(cmd, "--threads and --duration must be above 0")
		}
		dir := *model
		if dir == "" {
			var err error
			if dir, err = modeldir.Find(""); err != nil {
				return err
			}
		}
		opened, err := tokenizer.Open(dir)
		if err != nil {
			return err
		}
		if plan.Text, err = benchText(cmd.InOrStdin(), *text); err != nil {
			return err
		}
		r, err := bench.Measure(cmd.Context(), opened, plan)
		return measured(cmd, *asJSON, r, err, printTokenizer)
	}
	return cmd
}

func printTokenizer(out io.Writer, r *bench.Result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "encode\t%.2f M tokens/s\t%.1f MB/s\t%.3f of a scan\n", r.Encode/1e6, r.EncodeBytes, r.EncodeShare)
	fmt.Fprintf(w, "decode\t%.2f M tokens/s\t%.1f MB/s\t\n", r.Decode/1e6, r.DecodeBytes)
	fmt.Fprintf(w, "scan\t\t%.1f MB/s\t\n", r.Scan)
	fmt.Fprintf(w, "\t\t\tone core of %d, %s time; %d bytes, %d tokens\n", r.Threads, r.Clock, r.TextBytes, r.TextTokens)
	return w.Flush()
}

func benchText(stdin io.Reader, name string) (string, error) {
	in := stdin
	switch name {
	case "":
		return bench.Corpus, nil
	case "-":
	default:
		f, err := os.Open(name)
		if err != nil {
			return "", fmt.Errorf("open the text: %w", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxBenchTextBytes+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("read the text: %w", err)
	case len(data) > maxBenchTextBytes:
		return "", fmt.Errorf("the text has more than %d bytes: shorten it", maxBenchTextBytes)
	case len(data) == 0:
		return "", fmt.Errorf("the text is empty: give some")
	}
	return string(data), nil
}
