package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/model"
)

// inspectJSON is what `model inspect --json` prints. Sizes are in bytes.
type inspectJSON struct {
	Directory      string  `json:"directory"`
	Name           string  `json:"name"`
	Digest         string  `json:"digest"`
	Architecture   string  `json:"architecture"`
	Parameters     int64   `json:"parameters"`
	WeightType     string  `json:"weight_type"`
	WeightBytes    int64   `json:"weight_bytes"`
	VocabSize      int     `json:"vocab_size"`
	HiddenSize     int     `json:"hidden_size"`
	Layers         int     `json:"layers"`
	Heads          int     `json:"heads"`
	KVHeads        int     `json:"kv_heads"`
	HeadSize       int     `json:"head_size"`
	FFNSize        int     `json:"ffn_size"`
	ContextTokens  int     `json:"context_tokens"`
	RMSNormEps     float32 `json:"rms_norm_eps"`
	RopeTheta      float64 `json:"rope_theta"`
	TiedEmbeddings bool    `json:"tied_embeddings"`
	// BOS is null if the model has no start token.
	BOS *int32  `json:"bos"`
	EOS []int32 `json:"eos"`
	// KVBytesPerToken holds keys and values of all layers.
	KVBytesPerToken int64 `json:"kv_bytes_per_token"`
	// KVBytesFullContext is what one sequence of ContextTokens takes.
	KVBytesFullContext int64 `json:"kv_bytes_full_context"`
	// MemoryBytes is weights and one sequence of full length.
	MemoryBytes int64 `json:"memory_bytes"`
}

func newModelInspectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect [DIR]",
		Short: "Check a model's directory and say what it is and what it needs",
		Long: `Reads all of the model in DIR (default: the bundled one), as a worker would, and
prints its shape, its digest and the memory it needs.`,
		Example: "  tandem model inspect models/fable --json",
		Args:    optionalDir,
	}
	asJSON := addJSON(cmd, "print one JSON object, sizes in bytes")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		dir, err := modelDir(args)
		if err != nil {
			return err
		}
		if _, err := model.LoadSpec(dir, model.Options{}); err != nil {
			return err
		}
		// Before the weights, which take longer.
		if _, err := modeldir.OpenTokenizer(dir); err != nil {
			return err
		}
		progress, finish := terminalProgress(cmd.ErrOrStderr())
		opened, err := model.OpenContext(cmd.Context(), dir, model.Options{Progress: progress})
		finish()
		if err != nil {
			return err
		}
		defer opened.Close()
		inspected, err := inspect(dir, opened.Spec())
		if err != nil {
			return err
		}
		if *asJSON {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(inspected)
		}
		return printInspection(cmd.OutOrStdout(), inspected)
	}
	return cmd
}

func inspect(dir string, spec model.Spec) (inspectJSON, error) {
	weights, err := weightBytes(dir)
	if err != nil {
		return inspectJSON{}, err
	}
	kv := int64(spec.Layers * simulated.SliceBytes(spec, 1))
	inspected := inspectJSON{
		Directory: dir, Name: spec.Name, Digest: spec.Digest, Architecture: spec.Architecture,
		Parameters: spec.Parameters(), WeightType: spec.WeightType, WeightBytes: weights,
		VocabSize: spec.VocabSize, HiddenSize: spec.HiddenSize, Layers: spec.Layers, Heads: spec.Heads,
		KVHeads: spec.KVHeads, HeadSize: spec.HeadSize, FFNSize: spec.FFNSize, ContextTokens: spec.ContextTokens,
		RMSNormEps: spec.RMSNormEps, RopeTheta: spec.RopeTheta, TiedEmbeddings: spec.TiedEmbeddings,
		EOS:             append([]int32{}, spec.EOS...),
		KVBytesPerToken: kv, KVBytesFullContext: kv * int64(spec.ContextTokens),
		MemoryBytes: weights + kv*int64(spec.ContextTokens),
	}
	if spec.BOS >= 0 {
		inspected.BOS = &spec.BOS
	}
	return inspected, nil
}

// weightBytes is the size of the files that hold the weights.
func weightBytes(dir string) (int64, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil {
		return 0, fmt.Errorf("list the weights in %s: %w", dir, err)
	}
	var total int64
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return 0, fmt.Errorf("size of the weights: %w", err)
		}
		total += info.Size()
	}
	return total, nil
}

func printInspection(w io.Writer, m inspectJSON) error {
	embeddings, bos := "separate", "none"
	if m.TiedEmbeddings {
		embeddings = "tied"
	}
	if m.BOS != nil {
		bos = fmt.Sprint(*m.BOS)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range [][2]string{
		{"model", m.Name + " (" + m.Directory + ")"},
		{"digest", m.Digest},
		{"architecture", m.Architecture},
		{"parameters", fmt.Sprintf("%d", m.Parameters)},
		{"weights", bytesText(m.WeightBytes) + " as " + m.WeightType},
		{"shape", fmt.Sprintf("%d layers, hidden %d, %d heads of %d, %d KV heads, FFN %d", m.Layers, m.HiddenSize, m.Heads, m.HeadSize, m.KVHeads, m.FFNSize)},
		{"vocabulary", fmt.Sprintf("%d tokens, embeddings %s, start %s, end %v", m.VocabSize, embeddings, bos, m.EOS)},
		{"context", fmt.Sprintf("%d tokens, RoPE base %g", m.ContextTokens, m.RopeTheta)},
		{"KV cache", fmt.Sprintf("%s a token, %s a full context", bytesText(m.KVBytesPerToken), bytesText(m.KVBytesFullContext))},
		{"memory", bytesText(m.MemoryBytes) + " for the weights and one full context"},
	} {
		fmt.Fprintf(table, "%s\t%s\n", row[0], row[1])
	}
	return table.Flush()
}
