package model

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// LayerWeights are the weights of one transformer layer, as rows by columns.
type LayerWeights struct {
	AttnNorm Tensor // HiddenSize
	Q        Tensor // Heads*HeadSize by HiddenSize
	K        Tensor // KVHeads*HeadSize by HiddenSize
	V        Tensor // KVHeads*HeadSize by HiddenSize
	O        Tensor // HiddenSize by Heads*HeadSize
	QBias    Tensor // Heads*HeadSize; empty without Spec.QKVBias
	KBias    Tensor // KVHeads*HeadSize; empty without Spec.QKVBias
	VBias    Tensor // KVHeads*HeadSize; empty without Spec.QKVBias
	QNorm    Tensor // HeadSize; empty without Spec.QKNorm
	KNorm    Tensor // HeadSize; empty without Spec.QKNorm
	FFNNorm  Tensor // HiddenSize
	Gate     Tensor // FFNSize by HiddenSize
	Up       Tensor // FFNSize by HiddenSize
	Down     Tensor // HiddenSize by FFNSize
}

// Bytes is the size of all of them.
func (l *LayerWeights) Bytes() int64 {
	return DataBytes(l.AttnNorm, l.Q, l.K, l.V, l.O, l.QBias, l.KBias, l.VBias, l.QNorm, l.KNorm, l.FFNNorm, l.Gate, l.Up, l.Down)
}

// Names of the tensors outside of the layers.
const (
	embeddingName = "model.embed_tokens.weight"
	finalNormName = "model.norm.weight"
	outputName    = "lm_head.weight"
)

// slot is one weight of the architecture.
type slot struct {
	name  string
	shape []int
	// to is where it goes in the model.
	to func(*Model) *Tensor
}

// slots lists the weights that a model has, in the order in which a step uses
// them.
func slots(s Spec) []slot {
	parts := layerParts(s)
	list := make([]slot, 0, 3+len(parts)*s.Layers)
	list = append(list, slot{embeddingName, []int{s.VocabSize, s.HiddenSize}, func(m *Model) *Tensor { return &m.embedding }})
	for i := range s.Layers {
		for _, part := range parts {
			list = append(list, slot{
				fmt.Sprintf("model.layers.%d.%s", i, part.name), part.shape,
				func(m *Model) *Tensor { return part.to(&m.layers[i]) },
			})
		}
	}
	list = append(list, slot{finalNormName, []int{s.HiddenSize}, func(m *Model) *Tensor { return &m.finalNorm }})
	if !s.TiedEmbeddings {
		list = append(list, slot{outputName, []int{s.VocabSize, s.HiddenSize}, func(m *Model) *Tensor { return &m.output }})
	}
	return list
}

// layerPart is one weight of a layer; name is what follows the layer's number.
type layerPart struct {
	name  string
	shape []int
	to    func(*LayerWeights) *Tensor
}

func layerParts(s Spec) []layerPart {
	q, kv := s.Heads*s.HeadSize, s.KVHeads*s.HeadSize
	parts := []layerPart{
		{"input_layernorm.weight", []int{s.HiddenSize}, func(w *LayerWeights) *Tensor { return &w.AttnNorm }},
		{"self_attn.q_proj.weight", []int{q, s.HiddenSize}, func(w *LayerWeights) *Tensor { return &w.Q }},
		{"self_attn.k_proj.weight", []int{kv, s.HiddenSize}, func(w *LayerWeights) *Tensor { return &w.K }},
		{"self_attn.v_proj.weight", []int{kv, s.HiddenSize}, func(w *LayerWeights) *Tensor { return &w.V }},
	}
	if s.QKVBias {
		parts = append(parts,
			layerPart{"self_attn.q_proj.bias", []int{q}, func(w *LayerWeights) *Tensor { return &w.QBias }},
			layerPart{"self_attn.k_proj.bias", []int{kv}, func(w *LayerWeights) *Tensor { return &w.KBias }},
			layerPart{"self_attn.v_proj.bias", []int{kv}, func(w *LayerWeights) *Tensor { return &w.VBias }},
		)
	}
	if s.QKNorm {
		parts = append(parts,
			layerPart{"self_attn.q_norm.weight", []int{s.HeadSize}, func(w *LayerWeights) *Tensor { return &w.QNorm }},
			layerPart{"self_attn.k_norm.weight", []int{s.HeadSize}, func(w *LayerWeights) *Tensor { return &w.KNorm }},
		)
	}
	return append(parts,
		layerPart{"self_attn.o_proj.weight", []int{s.HiddenSize, q}, func(w *LayerWeights) *Tensor { return &w.O }},
		layerPart{"post_attention_layernorm.weight", []int{s.HiddenSize}, func(w *LayerWeights) *Tensor { return &w.FFNNorm }},
		layerPart{"mlp.gate_proj.weight", []int{s.FFNSize, s.HiddenSize}, func(w *LayerWeights) *Tensor { return &w.Gate }},
		layerPart{"mlp.up_proj.weight", []int{s.FFNSize, s.HiddenSize}, func(w *LayerWeights) *Tensor { return &w.Up }},
		layerPart{"mlp.down_proj.weight", []int{s.HiddenSize, s.FFNSize}, func(w *LayerWeights) *Tensor { return &w.Down }},
	)
}

// located is a header entry and the file that it was found in.
type located struct {
	headerEntry
	file string
}

// ignorable matches buffers that old checkpoints stored and that follow from
// config.json: Hugging Face's loader drops them too.
var ignorable = regexp.MustCompile(`^model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq$`)

// checkTensors compares what the files hold with what the configuration needs,
// and completes spec.WeightType. root is the file to blame for what is nowhere.
func checkTensors(root string, spec *Spec, found map[string]located) error {
	if err := checkQuantized(found); err != nil {
		return err
	}
	wanted := slots(*spec)
	known := make(map[string]struct{}, len(wanted))
	for _, w := range wanted {
		known[w.name] = struct{}{}
		have, ok := found[w.name]
		if !ok {
			remedy := "fetch the whole checkpoint; config.json and weights must come from the same one"
			if w.name == outputName {
				remedy = `fetch the whole checkpoint, or set "tie_word_embeddings" to true in config.json if the output is the embedding`
			}
			return &Error{File: root, Tensor: w.name, Problem: "is missing", Remedy: remedy}
		}
		if err := checkTensor(have, w.shape); err != nil {
			return err
		}
	}
	// One type for all matrices: the engines' kernels and the arithmetic class
	// depend on it. Norms and biases are widened anyway and may differ.
	matrix, _ := weightType(found[embeddingName].DType)
	for _, w := range wanted {
		if have := found[w.name]; len(w.shape) == 2 && have.DType != found[embeddingName].DType {
			return &Error{File: have.file, Tensor: w.name, Problem: fmt.Sprintf("element type %s, but %s has %s", have.DType, embeddingName, found[embeddingName].DType), Remedy: "convert all matrices to one type"}
		}
	}
	spec.WeightType = matrix.String()
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if _, ok := known[name]; ok || ignorable.MatchString(name) {
			continue
		}
		have := found[name]
		if name == outputName { // tied, and stored all the same; Open compares the bytes
			if err := checkTensor(have, []int{spec.VocabSize, spec.HiddenSize}); err != nil {
				return err
			}
			if have.DType != found[embeddingName].DType {
				return untied(have.file)
			}
			continue
		}
		return &Error{File: have.file, Tensor: name, Problem: "is no part of a " + spec.Architecture + " with this config.json, and ignoring it would change the result", Remedy: "use a plain, unquantized checkpoint whose config.json belongs to it"}
	}
	return nil
}

// checkQuantized refuses quantized weights whose config.json does not say so: what
// is missing of the plain ones would only mislead.
func checkQuantized(found map[string]located) error {
	for _, name := range slices.Sorted(maps.Keys(found)) {
		for _, known := range []struct{ suffix, by string }{
			{".qweight", "GPTQ or AWQ"}, {".qzeros", "GPTQ or AWQ"}, {".g_idx", "GPTQ"},
			{".weight_scale", "FP8 or compressed-tensors"}, {".weight_scale_inv", "FP8"}, {".weight_packed", "compressed-tensors"},
			{".weight.absmax", "bitsandbytes"}, {".SCB", "bitsandbytes"},
		} {
			if strings.HasSuffix(name, known.suffix) {
				return &Error{File: found[name].file, Tensor: name, Problem: "belongs to quantized weights (" + known.by + "), which are not supported", Remedy: "use the bf16, f16 or f32 checkpoint"}
			}
		}
	}
	return nil
}

func checkTensor(have located, shape []int) error {
	if _, ok := weightType(have.DType); !ok {
		return &Error{File: have.file, Tensor: have.Name, Problem: "element type " + have.DType + " is not supported", Remedy: "use a bf16, f16 or f32 checkpoint"}
	}
	if !slices.Equal(have.Shape, shape) {
		return &Error{File: have.file, Tensor: have.Name, Problem: fmt.Sprintf("shape %v, but config.json asks for %v", have.Shape, shape), Remedy: "take config.json and weights from the same checkpoint"}
	}
	return nil
}

func untied(file string) error {
	return &Error{File: file, Tensor: outputName, Problem: "differs from " + embeddingName + `, but config.json says "tie_word_embeddings"`, Remedy: "set it to false, or use a checkpoint that agrees with itself"}
}
