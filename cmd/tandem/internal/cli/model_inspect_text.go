package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/tandem-serving/tandem/pkg/engine/cuda"
)

// printInspection is `model inspect` for people.
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
		{"architecture", m.Architecture + " (" + m.Family + ")"},
		{"parameters", fmt.Sprintf("%d", m.Parameters)},
		{"weights", bytesText(m.WeightBytes) + " as " + m.WeightType + ", " + bytesText(m.PackedWeightBytes) + " in memory, " + bytesText(m.PackedInt8Bytes) + " as int8, " + bytesText(m.PackedInt4Bytes) + " as int4"},
		{"shape", fmt.Sprintf("%d layers, hidden %d, %d heads of %d, %d KV heads, FFN %d", m.Layers, m.HiddenSize, m.Heads, m.HeadSize, m.KVHeads, m.FFNSize)},
		{"attention", m.attention()},
		{"vocabulary", fmt.Sprintf("%d tokens, embeddings %s, start %s, end %v", m.VocabSize, embeddings, bos, m.EOS)},
		{"context", fmt.Sprintf("%d tokens, RoPE base %g, %s", m.ContextTokens, m.RopeTheta, m.RopeScaling)},
		{"sampling", m.Sampling.String()},
		{"chat", m.ChatTemplate.String()},
		{"KV cache", fmt.Sprintf("%s a token, %s a full context; %s a token as int8", bytesText(m.KVBytesPerToken), bytesText(m.KVBytesFullContext), bytesText(m.KVInt8BytesPerToken))},
		{"memory", bytesText(m.MemoryBytes) + " for the weights and one full context"},
		{"on a GPU", m.onGPU()},
	} {
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
	}{{"temperature", s.Temperature}, {"top-p", s.TopP}, {"min-p", s.MinP}, {"repetition penalty", s.RepetitionPenalty}} {
		if x.value != nil {
			parts = append(parts, fmt.Sprintf("%s %g", x.name, *x.value))
		}
	}
	if s.TopK != nil {
		parts = append(parts, fmt.Sprintf("top-k %d", *s.TopK))
	}
	if parts == nil {
		return "the model asks for nothing"
	}
	return strings.Join(parts, ", ")
}
