package commands

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
	"github.com/tandem-serving/tandem/pkg/chat"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// inspectJSON is what `model inspect --json` prints. Sizes are in bytes.
type inspectJSON struct {
	Directory     string  `json:"directory"`
	Name          string  `json:"name"`
	Digest        string  `json:"digest"`
	Architecture  string  `json:"architecture"`
	Family        string  `json:"family"`
	Parameters    int64   `json:"parameters"`
	WeightType    string  `json:"weight_type"`
	WeightBytes   int64   `json:"weight_bytes"`
	VocabSize     int     `json:"vocab_size"`
	HiddenSize    int     `json:"hidden_size"`
	Layers        int     `json:"layers"`
	Heads         int     `json:"heads"`
	KVHeads       int     `json:"kv_heads"`
	HeadSize      int     `json:"head_size"`
	FFNSize       int     `json:"ffn_size"`
	ContextTokens int     `json:"context_tokens"`
	RMSNormEps    float32 `json:"rms_norm_eps"`
	RopeTheta     float64 `json:"rope_theta"`
	// RopeScaling is null if positions are not scaled.
	RopeScaling *ropeScalingJSON `json:"rope_scaling"`
	QKVBias     bool             `json:"qkv_bias"`
	QKNorm      bool             `json:"qk_norm"`
	// WindowTokens is the sliding window of WindowLayers of the layers; 0: none.
	WindowTokens   int  `json:"window_tokens"`
	WindowLayers   int  `json:"window_layers"`
	TiedEmbeddings bool `json:"tied_embeddings"`
	// BOS is null if the model has no start token.
	BOS *int32  `json:"bos"`
	EOS []int32 `json:"eos"`
	// Sampling is what generation_config.json says of how tokens are drawn.
	Sampling samplingJSON `json:"sampling"`
	// ChatTemplate says whether conversations can be rendered.
	ChatTemplate chatTemplateJSON `json:"chat_template"`
	// PackedWeightBytes is what the weights take in the CPU engine's memory,
	// PackedInt8Bytes with --cpu-weights int8, PackedInt4Bytes with int4.
	PackedWeightBytes int64 `json:"packed_weight_bytes"`
	PackedInt8Bytes   int64 `json:"packed_int8_bytes"`
	PackedInt4Bytes   int64 `json:"packed_int4_bytes"`
	// KVBytesPerToken holds keys and values of all layers.
	KVBytesPerToken int64 `json:"kv_bytes_per_token"`
	// KVInt8BytesPerToken is the same with --cpu-kv int8.
	KVInt8BytesPerToken int64 `json:"kv_int8_bytes_per_token"`
	// KVBytesFullContext is what one sequence of ContextTokens takes.
	KVBytesFullContext int64 `json:"kv_bytes_full_context"`
	// MemoryBytes is packed weights and one sequence of full length.
	MemoryBytes int64 `json:"memory_bytes"`
	// GPUWeightBytes is what the weights take on a GPU with each --cuda-weights, and
	// GPUKVBytesPerToken what keys and values of all layers take with each --cuda-kv.
	GPUWeightBytes     map[cuda.WeightType]int64 `json:"gpu_weight_bytes"`
	GPUKVBytesPerToken map[cuda.KVType]int64     `json:"gpu_kv_bytes_per_token"`
	// Draft is what --draft-model takes besides.
	Draft *inspectedDraftJSON `json:"draft_model,omitempty"`
}

// inspectedDraftJSON is a draft model: sizes are as in inspectJSON.
type inspectedDraftJSON struct {
	Directory           string `json:"directory"`
	Name                string `json:"name"`
	Parameters          int64  `json:"parameters"`
	PackedWeightBytes   int64  `json:"packed_weight_bytes"`
	KVBytesPerToken     int64  `json:"kv_bytes_per_token"`
	KVInt8BytesPerToken int64  `json:"kv_int8_bytes_per_token"`
}

// inspectDraft checks a draft model for the model in a folder.
func inspectDraft(of, dir string) (*inspectedDraftJSON, error) {
	dir, err := modeldir.Named(dir, "--draft-model")
	if err != nil {
		return nil, err
	}
	spec, err := model.LoadSpec(dir, model.Options{})
	if err == nil {
		err = tokenizer.CheckSame(of, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("--draft-model: %w", err)
	}
	return &inspectedDraftJSON{
		Directory: dir, Name: spec.Name, Parameters: spec.Parameters(), PackedWeightBytes: cpu.WeightBytes(spec, cpu.BF16),
		KVBytesPerToken: kvBytesPerToken(spec, cpu.KVBF16), KVInt8BytesPerToken: kvBytesPerToken(spec, cpu.KVInt8),
	}, nil
}

// String says what it takes.
func (d *inspectedDraftJSON) String() string {
	return fmt.Sprintf("%s (%s), %d parameters, %s in memory; KV %s a token, %s as int8",
		d.Name, d.Directory, d.Parameters, bytesText(d.PackedWeightBytes), bytesText(d.KVBytesPerToken), bytesText(d.KVInt8BytesPerToken))
}

// ropeScalingJSON has only what its kind has a use for.
type ropeScalingJSON struct {
	Kind            string  `json:"kind"`
	Factor          float64 `json:"factor"`
	OriginalContext int     `json:"original_context,omitempty"`
	LowFreqFactor   float64 `json:"low_freq_factor,omitempty"`
	HighFreqFactor  float64 `json:"high_freq_factor,omitempty"`
	BetaFast        float64 `json:"beta_fast,omitempty"`
	BetaSlow        float64 `json:"beta_slow,omitempty"`
	Truncate        bool    `json:"truncate,omitempty"`
	AttentionFactor float64 `json:"attention_factor"`
}

// chatTemplateJSON is what came of opening the template and rendering a question.
type chatTemplateJSON struct {
	Usable  bool   `json:"usable"`
	Problem string `json:"problem,omitempty"`
}

// samplingJSON leaves out what is not said.
type samplingJSON struct {
	Temperature       *float32 `json:"temperature,omitempty"`
	TopP              *float32 `json:"top_p,omitempty"`
	MinP              *float32 `json:"min_p,omitempty"`
	TypicalP          *float32 `json:"typical_p,omitempty"`
	RepetitionPenalty *float32 `json:"repetition_penalty,omitempty"`
	TopK              *int     `json:"top_k,omitempty"`
}

func newModelInspectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect [DIR]",
		Short: "Check a model's directory, and print the model's shape and memory needs",
		Long: `Reads all of the model in DIR (default: the bundled one), as a worker would, and
prints its shape, its digest and the memory it needs.`,
		Example: "  tandem model inspect models/fable --json",
		Args:    atMostOne("directory"),
	}
	asJSON := addJSON(cmd, "print one JSON object, sizes in bytes")
	draft := cmd.Flags().String("draft-model", "", "directory of a draft model for it (--speculate draft), to check and add what that takes")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		dir, err := modelDir(args)
		if err == nil && len(args) == 1 {
			dir, err = modeldir.Named(dir, "the argument")
		}
		if err != nil {
			return err
		}
		if _, err := model.LoadSpec(dir, model.Options{}); err != nil {
			return err
		}
		// Before the weights, which take longer.
		if _, err := tokenizer.Open(dir); err != nil {
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
		inspected.ChatTemplate = inspectTemplate(cmd.Context(), dir)
		if *draft != "" {
			if inspected.Draft, err = inspectDraft(dir, *draft); err != nil {
				return err
			}
		}
		return show(cmd, *asJSON, inspected, printInspection)
	}
	return cmd
}

// kvBytesPerToken is what keys and values of all layers take in the CPU engine.
func kvBytesPerToken(spec model.Spec, kv cpu.KVType) int64 {
	return int64(spec.Layers) * int64(cpu.SliceBytes(spec, cpu.Config{KV: kv, BlockTokens: 1}))
}

func inspect(dir string, spec model.Spec) (inspectJSON, error) {
	weights, err := weightBytes(dir)
	if err != nil {
		return inspectJSON{}, err
	}
	kv, packed := kvBytesPerToken(spec, cpu.KVBF16), cpu.WeightBytes(spec, cpu.BF16)
	inspected := inspectJSON{
		Directory: dir, Name: spec.Name, Digest: spec.Digest, Architecture: spec.Architecture, Family: spec.Family(),
		Parameters: spec.Parameters(), WeightType: spec.WeightType, WeightBytes: weights,
		VocabSize: spec.VocabSize, HiddenSize: spec.HiddenSize, Layers: spec.Layers, Heads: spec.Heads,
		KVHeads: spec.KVHeads, HeadSize: spec.HeadSize, FFNSize: spec.FFNSize, ContextTokens: spec.ContextTokens,
		RMSNormEps: spec.RMSNormEps, RopeTheta: spec.RopeTheta, TiedEmbeddings: spec.TiedEmbeddings,
		QKVBias: spec.QKVBias, QKNorm: spec.QKNorm, PackedWeightBytes: packed, PackedInt8Bytes: cpu.WeightBytes(spec, cpu.Int8), PackedInt4Bytes: cpu.WeightBytes(spec, cpu.Int4),
		EOS:             append([]int32{}, spec.EOS...),
		Sampling:        samplingJSON(spec.Sampling),
		KVBytesPerToken: kv, KVInt8BytesPerToken: kvBytesPerToken(spec, cpu.KVInt8), KVBytesFullContext: kv * int64(spec.ContextTokens),
		MemoryBytes: packed + kv*int64(spec.ContextTokens),
	}
	inspected.inspectGPU(spec)
	if spec.BOS >= 0 {
		inspected.BOS = &spec.BOS
	}
	if r := spec.RopeScaling; r.Kind != "" {
		inspected.RopeScaling = new(ropeScalingJSON(r))
	}
	for layer := range spec.Layers {
		if window := spec.Window(layer); window > 0 {
			inspected.WindowTokens = window
			inspected.WindowLayers++
		}
	}
	return inspected, nil
}

// inspectGPU says what the model takes on a GPU, whether there is one or not.
func (m *inspectJSON) inspectGPU(spec model.Spec) {
	m.GPUWeightBytes, m.GPUKVBytesPerToken = map[cuda.WeightType]int64{}, map[cuda.KVType]int64{}
	for _, weights := range cuda.WeightTypes() {
		m.GPUWeightBytes[weights] = cuda.WeightBytes(spec, weights)
	}
	for _, kv := range cuda.KVTypes() {
		slice := cuda.SliceBytes(spec, cuda.Config{KV: kv, BlockTokens: cuda.DefaultBlockTokens})
		m.GPUKVBytesPerToken[kv] = int64(spec.Layers) * int64(slice) / cuda.DefaultBlockTokens
	}
}

func inspectTemplate(ctx context.Context, dir string) chatTemplateJSON {
	template, err := chat.Open(dir, "")
	if err == nil {
		err = chat.Try(ctx, template)
	}
	if err != nil {
		return chatTemplateJSON{Problem: err.Error()}
	}
	return chatTemplateJSON{Usable: true}
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
	rows := [][2]string{
		{"model", m.Name + " (" + m.Directory + ")"},
		{"digest", m.Digest},
		{"architecture", m.Architecture + " (" + m.Family + ")"},
		{"parameters", fmt.Sprintf("%d", m.Parameters)},
		{"weights", bytesText(m.WeightBytes) + " as " + m.WeightType + ", " + bytesText(m.PackedWeightBytes) + " in memory, " + bytesText(m.PackedInt8Bytes) + " as int8, " + bytesText(m.PackedInt4Bytes) + " as int4"},
		{"shape", fmt.Sprintf("%s, hidden %d, %s of %d, %s, FFN %d", counted(m.Layers, "layer"), m.HiddenSize, counted(m.Heads, "head"), m.HeadSize, counted(m.KVHeads, "KV head"), m.FFNSize)},
		{"attention", m.attention()},
		{"vocabulary", fmt.Sprintf("%d tokens, embeddings %s, start %s, end %v", m.VocabSize, embeddings, bos, m.EOS)},
		{"context", fmt.Sprintf("%d tokens, RoPE base %g, %s", m.ContextTokens, m.RopeTheta, m.RopeScaling)},
		{"sampling", m.Sampling.String()},
		{"chat", m.ChatTemplate.String()},
		{"KV cache", fmt.Sprintf("%s a token, %s a full context; %s a token as int8", bytesText(m.KVBytesPerToken), bytesText(m.KVBytesFullContext), bytesText(m.KVInt8BytesPerToken))},
		{"memory", bytesText(m.MemoryBytes) + " for the weights and one full context"},
		{"on a GPU", m.onGPU()},
	}
	if m.Draft != nil {
		rows = append(rows, [2]string{"draft model", m.Draft.String()})
	}
	for _, row := range rows {
		fmt.Fprintf(table, "%s\t%s\n", row[0], row[1])
	}
	return table.Flush()
}

// onGPU says what weights and KV take there, by type.
func (m inspectJSON) onGPU() string {
	var weights, kv []string
	for _, t := range cuda.WeightTypes() {
		weights = append(weights, bytesText(m.GPUWeightBytes[t])+" as "+string(t))
	}
	for _, t := range cuda.KVTypes() {
		kv = append(kv, bytesText(m.GPUKVBytesPerToken[t])+" as "+string(t))
	}
	return "weights " + strings.Join(weights, ", ") + "; KV of a token " + strings.Join(kv, ", ")
}

// attention says what sets the family apart.
func (m inspectJSON) attention() string {
	parts := []string{"every layer sees all"}
	if m.WindowLayers > 0 {
		parts[0] = fmt.Sprintf("%d of %d layers see %d tokens", m.WindowLayers, m.Layers, m.WindowTokens)
	}
	if m.QKVBias {
		parts = append(parts, "biases of Q, K and V")
	}
	if m.QKNorm {
		parts = append(parts, "norms of Q and K")
	}
	return strings.Join(parts, ", ")
}

// String names the scaling and what it stretches; nil has none.
func (r *ropeScalingJSON) String() string {
	switch {
	case r == nil:
		return "not scaled"
	case r.OriginalContext > 0:
		return fmt.Sprintf("scaled by %s: %g times from %d tokens", r.Kind, r.Factor, r.OriginalContext)
	}
	return fmt.Sprintf("scaled by %s: %g times", r.Kind, r.Factor)
}

// String says whether the model can chat, or why not.
func (c chatTemplateJSON) String() string {
	if c.Usable {
		return "by the model's own template"
	}
	return c.Problem
}

// String lists what generation_config.json says.
func (s samplingJSON) String() string {
	var parts []string
	for _, x := range []struct {
		name  string
		value *float32
	}{{"temperature", s.Temperature}, {"top-p", s.TopP}, {"min-p", s.MinP}, {"typical-p", s.TypicalP}, {"repetition penalty", s.RepetitionPenalty}} {
		if x.value != nil {
			parts = append(parts, fmt.Sprintf("%s %g", x.name, *x.value))
		}
	}
	if s.TopK != nil {
		parts = append(parts, fmt.Sprintf("top-k %d", *s.TopK))
	}
	if parts == nil {
		return "none set by the model"
	}
	return strings.Join(parts, ", ")
}
