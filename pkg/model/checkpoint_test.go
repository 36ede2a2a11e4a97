package model_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// checkpoint is a small model that tests spoil before they write it.
type checkpoint struct {
	config  map[string]any
	tensors []stored
	// shards, if above 1, spreads the tensors over that many files.
	shards int
}

// stored is one tensor as it goes into a file.
type stored struct {
	name  string
	dtype string
	shape []int
	data  []byte
}

// Sizes of the small model.
const (
	vocab, hidden, layers, heads, kvHeads, headSize, ffn = 16, 8, 2, 2, 1, 6, 12
)

// newCheckpoint is a good one: head size apart from hidden/heads, separate
// embeddings.
func newCheckpoint(dtype string) *checkpoint {
	c := &checkpoint{config: map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama",
		"vocab_size": vocab, "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
		"num_attention_heads": heads, "num_key_value_heads": kvHeads, "head_dim": headSize,
		"hidden_act": "silu", "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "rope_scaling": nil,
		"tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
	}}
	rng := rand.New(rand.NewPCG(1, 2))
	add := func(name string, shape ...int) { c.tensors = append(c.tensors, random(rng, name, dtype, shape...)) }
	add("model.embed_tokens.weight", vocab, hidden)
	for i := range layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		add(p+"input_layernorm.weight", hidden)
		add(p+"self_attn.q_proj.weight", heads*headSize, hidden)
		add(p+"self_attn.k_proj.weight", kvHeads*headSize, hidden)
		add(p+"self_attn.v_proj.weight", kvHeads*headSize, hidden)
		add(p+"self_attn.o_proj.weight", hidden, heads*headSize)
		add(p+"post_attention_layernorm.weight", hidden)
		add(p+"mlp.gate_proj.weight", ffn, hidden)
		add(p+"mlp.up_proj.weight", ffn, hidden)
		add(p+"mlp.down_proj.weight", hidden, ffn)
	}
	add("model.norm.weight", hidden)
	add("lm_head.weight", vocab, hidden)
	return c
}

// random holds numbers that are exact in every type: multiples of 1/8 up to 8.
func random(rng *rand.Rand, name, dtype string, shape ...int) stored {
	n := 1
	for _, d := range shape {
		n *= d
	}
	s := stored{name: name, dtype: dtype, shape: shape}
	for range n {
		s.data = appendElement(s.data, dtype, float32(rng.IntN(129)-64)/8)
	}
	return s
}

func appendElement(data []byte, dtype string, x float32) []byte {
	bits := math.Float32bits(x)
	switch dtype {
	case "BF16":
		return binary.LittleEndian.AppendUint16(data, uint16(bits>>16))
	case "F16":
		half := uint16(bits >> 16 & 0x8000)
		if x != 0 {
			half |= uint16((bits>>23&0xff-112)<<10 | bits>>13&0x3ff)
		}
		return binary.LittleEndian.AppendUint16(data, half)
	case "F32":
		return binary.LittleEndian.AppendUint32(data, bits)
	case "F64":
		return binary.LittleEndian.AppendUint64(data, math.Float64bits(float64(x)))
	}
	return append(data, 0)
}

// tensor finds one to spoil.
func (c *checkpoint) tensor(t *testing.T, name string) *stored {
	t.Helper()
	i := slices.IndexFunc(c.tensors, func(s stored) bool { return s.name == name })
	if i < 0 {
		t.Fatalf("no tensor %s", name)
	}
	return &c.tensors[i]
}

// drop takes a tensor out.
func (c *checkpoint) drop(name string) {
	c.tensors = slices.DeleteFunc(c.tensors, func(s stored) bool { return s.name == name })
}

// shardName is the name of file i of n.
func shardName(i, n int) string { return fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, n) }

// write makes a directory of it.
func (c *checkpoint) write(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	writeJSON(t, filepath.Join(dir, "config.json"), c.config)
	if c.shards <= 1 {
		writeFile(t, filepath.Join(dir, "model.safetensors"), safetensors(t, c.tensors))
		return dir
	}
	where := map[string]string{}
	for i := range c.shards {
		var part []stored
		for k := i; k < len(c.tensors); k += c.shards {
			part = append(part, c.tensors[k])
			where[c.tensors[k].name] = shardName(i, c.shards)
		}
		writeFile(t, filepath.Join(dir, shardName(i, c.shards)), safetensors(t, part))
	}
	writeJSON(t, filepath.Join(dir, "model.safetensors.index.json"), map[string]any{"metadata": map[string]any{"total_size": 1}, "weight_map": where})
	return dir
}

// safetensors is a file of tensors.
func safetensors(t *testing.T, tensors []stored) []byte {
	t.Helper()
	header := map[string]any{"__metadata__": map[string]string{"format": "pt"}}
	var data []byte
	for _, s := range tensors {
		start := len(data)
		data = append(data, s.data...)
		header[s.name] = map[string]any{"dtype": s.dtype, "shape": s.shape, "data_offsets": []int{start, len(data)}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	return rawSafetensors(text, data)
}

func rawSafetensors(header, data []byte) []byte {
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(file, header...), data...)
}

func writeJSON(t *testing.T, path string, value any) {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, data)
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
