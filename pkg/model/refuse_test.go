package model_test

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/model"
)

// refusal is a checkpoint that must be refused, and what the message names.
type refusal struct {
	name string
	// spoil changes the checkpoint before, after its directory once it is written.
	spoil func(*testing.T, *checkpoint)
	after func(t *testing.T, dir string)
	// file ends the path that the error blames; tensor and field are exact.
	file, tensor, field string
	// says is part of the problem.
	says string
	// bytes: only Open sees it, not LoadSpec, which reads no weights.
	bytes bool
}

func TestRefusedTensors(t *testing.T) {
	t.Parallel()
	const q, weights, index = "model.layers.1.self_attn.q_proj.weight", "model.safetensors", "model.safetensors.index.json"
	extra := func(name, dtype string) func(*testing.T, *checkpoint) {
		return func(_ *testing.T, c *checkpoint) {
			c.tensors = append(c.tensors, stored{name, dtype, []int{1}, appendElement(nil, dtype, 1)})
		}
	}
	refuse(t, []refusal{
		{name: "missing tensor", file: weights, tensor: q, says: "is missing",
			spoil: func(_ *testing.T, c *checkpoint) { c.drop(q) }},
		{name: "missing tensor of shards", file: index, tensor: q, says: "is missing",
			spoil: func(_ *testing.T, c *checkpoint) { c.drop(q); c.shards = 2 }},
		{name: "missing output", file: weights, tensor: "lm_head.weight", says: "tie_word_embeddings",
			spoil: func(_ *testing.T, c *checkpoint) { c.drop("lm_head.weight") }},
		{name: "transposed", file: weights, tensor: q, says: "shape [8 12], but config.json asks for [12 8]",
			spoil: func(t *testing.T, c *checkpoint) { c.tensor(t, q).shape = []int{hidden, heads * headSize} }},
		{name: "flattened", file: weights, tensor: q, says: "shape [96]",
			spoil: func(t *testing.T, c *checkpoint) { c.tensor(t, q).shape = []int{hidden * heads * headSize} }},
		{name: "too few layers asked for", file: weights, tensor: "model.layers.1.input_layernorm.weight", says: "would change the result",
			spoil: func(_ *testing.T, c *checkpoint) { c.config["num_hidden_layers"] = 1 }},
		{name: "more layers asked for", file: weights, tensor: "model.layers.2.input_layernorm.weight", says: "is missing",
			spoil: func(_ *testing.T, c *checkpoint) { c.config["num_hidden_layers"] = 3 }},
		{name: "double precision", file: weights, tensor: q, says: "element type F64",
			spoil: func(t *testing.T, c *checkpoint) {
				s := c.tensor(t, q)
				s.dtype, s.data = "F64", make([]byte, 8*hidden*heads*headSize)
			}},
		{name: "float8", file: weights, tensor: q, says: "element type F8_E4M3",
			spoil: func(t *testing.T, c *checkpoint) {
				s := c.tensor(t, q)
				s.dtype, s.data = "F8_E4M3", make([]byte, hidden*heads*headSize)
			}},
		{name: "unknown type", file: weights, tensor: q, says: `element type "Q4" is not known`,
			spoil: func(t *testing.T, c *checkpoint) { c.tensor(t, q).dtype = "Q4" }},
		{name: "matrices of two types", file: weights, tensor: q, says: "element type F16, but model.embed_tokens.weight has BF16",
			spoil: func(t *testing.T, c *checkpoint) { c.tensor(t, q).dtype = "F16" }},
		{name: "bias", file: weights, tensor: "model.layers.0.self_attn.q_proj.bias", says: "would change the result",
			spoil: extra("model.layers.0.self_attn.q_proj.bias", "BF16")},
		{name: "query norm", file: weights, tensor: "model.layers.0.self_attn.q_norm.weight", says: "would change the result",
			spoil: extra("model.layers.0.self_attn.q_norm.weight", "BF16")},
		{name: "quantized by GPTQ", file: weights, tensor: "model.layers.0.mlp.up_proj.qweight", says: "quantized weights (GPTQ or AWQ)",
			spoil: func(_ *testing.T, c *checkpoint) {
				c.drop("model.layers.0.mlp.up_proj.weight")
				c.tensors = append(c.tensors, stored{"model.layers.0.mlp.up_proj.qweight", "I32", []int{1}, make([]byte, 4)})
			}},
		{name: "quantized to FP8", file: weights, tensor: "model.layers.0.mlp.up_proj.weight_scale_inv", says: "quantized weights (FP8)",
			spoil: extra("model.layers.0.mlp.up_proj.weight_scale_inv", "F32")},
		{name: "tied, but another output", file: weights, tensor: "lm_head.weight", says: "differs from model.embed_tokens.weight", bytes: true,
			spoil: func(_ *testing.T, c *checkpoint) { c.config["tie_word_embeddings"] = true }},
		{name: "tied, but an output of another shape", file: weights, tensor: "lm_head.weight", says: "shape [8 16]",
			spoil: func(t *testing.T, c *checkpoint) {
				c.config["tie_word_embeddings"] = true
				c.tensor(t, "lm_head.weight").shape = []int{hidden, vocab}
			}},
		{name: "tied, but an output of another type", file: weights, tensor: "lm_head.weight", says: "differs from",
			spoil: func(t *testing.T, c *checkpoint) {
				c.config["tie_word_embeddings"] = true
				c.tensor(t, "lm_head.weight").dtype = "F16"
			}},
	})
}

func TestRefusedFiles(t *testing.T) {
	t.Parallel()
	const weights, index, embedding = "model.safetensors", "model.safetensors.index.json", "model.embed_tokens.weight"
	sharded := func(_ *testing.T, c *checkpoint) { c.shards = 3 }
	replace := func(name string, data []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) { writeFile(t, filepath.Join(dir, name), data) }
	}
	cut := func(name string, keep func(size int) int) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, name)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			writeFile(t, path, data[:keep(len(data))])
		}
	}
	remove := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	linkNowhere := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.Symlink("nowhere", filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	mapTo := func(file string) func(*testing.T, string) {
		return replace(index, []byte(`{"weight_map":{"`+embedding+`":"`+file+`"}}`))
	}
	refuse(t, []refusal{
		{name: "last byte gone", file: weights, tensor: "lm_head.weight", says: "truncated", after: cut(weights, func(n int) int { return n - 1 })},
		{name: "cut in the header", file: weights, says: "the file ends after", after: cut(weights, func(int) int { return 100 })},
		{name: "cut in the length", file: weights, says: "too few", after: cut(weights, func(int) int { return 7 })},
		{name: "empty", file: weights, says: "too few", after: cut(weights, func(int) int { return 0 })},
		{name: "bytes too many", file: weights, says: "the header accounts for", after: func(t *testing.T, dir string) {
			path := filepath.Join(dir, weights)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			writeFile(t, path, append(data, 0))
		}},
		{name: "header longer than allowed", file: weights, says: "more than 100000000",
			after: replace(weights, append(binary.LittleEndian.AppendUint64(nil, 100_000_001), "{}"...))},
		{name: "header of negative length", file: weights, says: "more than 100000000",
			after: replace(weights, append(binary.LittleEndian.AppendUint64(nil, 1<<63), "{}"...))},
		{name: "pointer of Git LFS", file: weights, says: "Git LFS",
			after: replace(weights, []byte("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n"))},
		{name: "configuration is a pointer of Git LFS", file: "config.json", says: "Git LFS",
			after: replace("config.json", []byte("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n"))},
		{name: "index is a pointer of Git LFS", file: index, says: "Git LFS", spoil: sharded,
			after: replace(index, []byte("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n"))},
		{name: "weights are a directory", file: weights, says: "not a regular file", after: func(t *testing.T, dir string) {
			remove(weights)(t, dir)
			if err := os.Mkdir(filepath.Join(dir, weights), 0o755); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "no weights", file: "small", says: "holds neither", after: remove(weights)},
		{name: "pickled weights", file: "small", says: "convert pytorch_model.bin", after: func(t *testing.T, dir string) {
			remove(weights)(t, dir)
			replace("pytorch_model.bin", nil)(t, dir)
		}},
		{name: "no configuration", file: "config.json", says: "no such file", after: remove("config.json")},
		{name: "configuration cut short", file: "config.json", says: "not valid JSON", after: cut("config.json", func(n int) int { return n - 1 })},
		{name: "configuration of megabytes", file: "config.json", says: "longer than", after: replace("config.json", make([]byte, 5<<20))},
		{name: "generation configuration is a list", file: "generation_config.json", says: "not a JSON object", after: replace("generation_config.json", []byte("[]"))},
		{name: "generation configuration is a link to nowhere", file: "generation_config.json", says: "cannot be read", after: linkNowhere("generation_config.json")},
		{name: "index is a link to nowhere", file: index, says: "cannot be read", after: func(t *testing.T, dir string) {
			remove(weights)(t, dir)
			linkNowhere(index)(t, dir)
		}},
		{name: "end token outside of the vocabulary", file: "generation_config.json", field: "eos_token_id", says: "token id 16 is not below vocab_size 16",
			after: replace("generation_config.json", []byte(`{"eos_token_id":[2,16]}`))},
		{name: "absent shard", file: index, says: "which cannot be read", tensor: "model.layers.0.input_layernorm.weight", field: "weight_map",
			spoil: sharded, after: remove(shardName(1, 3))},
		{name: "shard outside of the directory", file: index, tensor: embedding, field: "weight_map", says: `"../small/x", which is not the name of a file of this directory`,
			spoil: sharded, after: mapTo("../small/x")},
		{name: "shard in the root", file: index, tensor: embedding, field: "weight_map", says: "not the name of a file", spoil: sharded, after: mapTo("/etc/passwd")},
		{name: "shard is the parent", file: index, tensor: embedding, field: "weight_map", says: "not the name of a file", spoil: sharded, after: mapTo("..")},
		{name: "shard with a backslash", file: index, tensor: embedding, field: "weight_map", says: "not the name of a file", spoil: sharded, after: mapTo(`..\\x`)},
		{name: "shard without a name", file: index, tensor: embedding, field: "weight_map", says: "not the name of a file", spoil: sharded, after: mapTo("")},
		{name: "index without a map", file: index, field: "weight_map", says: "is missing", spoil: sharded, after: replace(index, []byte("{}"))},
		{name: "index with an empty map", file: index, field: "weight_map", says: "is empty", spoil: sharded, after: replace(index, []byte(`{"weight_map":{}}`))},
		{name: "index that is no map", file: index, field: "weight_map", says: "does not map", spoil: sharded, after: replace(index, []byte(`{"weight_map":[]}`))},
		{name: "index that is not JSON", file: index, says: "not valid JSON", spoil: sharded, after: replace(index, []byte(`{"weight_map"`))},
		{name: "index that leaves a tensor out", file: shardName(0, 3), tensor: "model.layers.0.self_attn.k_proj.weight", says: "is not listed", spoil: sharded,
			after: mapTo(shardName(0, 3))},
		{name: "index that lists a tensor too many", file: shardName(1, 2), tensor: "model.layers.0.input_layernorm.weight", says: "says that it is here",
			spoil: func(_ *testing.T, c *checkpoint) { c.shards = 2 },
			after: func(t *testing.T, dir string) {
				c := newCheckpoint("BF16")
				var second []stored
				for i, s := range c.tensors {
					if i%2 == 1 && i > 1 {
						second = append(second, s)
					}
				}
				writeFile(t, filepath.Join(dir, shardName(1, 2)), safetensors(t, second))
			}},
		{name: "tensor in two shards", file: shardName(1, 2), tensor: embedding, says: "is also in",
			spoil: func(_ *testing.T, c *checkpoint) { c.shards = 2 },
			after: func(t *testing.T, dir string) {
				c := newCheckpoint("BF16")
				second := c.tensors[:1:1]
				for i, s := range c.tensors {
					if i%2 == 1 {
						second = append(second, s)
					}
				}
				writeFile(t, filepath.Join(dir, shardName(1, 2)), safetensors(t, second))
			}},
	})
}

// TestCauseIsKept: callers can tell that a file is not there.
func TestCauseIsKept(t *testing.T) {
	t.Parallel()
	if _, err := model.Open(t.TempDir(), model.Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

func TestRefusedDirectory(t *testing.T) {
	t.Parallel()
	for dir, says := range map[string]string{
		filepath.Join(t.TempDir(), "nowhere"): "no such model directory",
		filepath.Join(bundled, "config.json"): "is not a directory",
	} {
		_, err := model.Open(dir, model.Options{})
		var is *model.Error
		if !errors.As(err, &is) || is.File != dir || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// refuse checks that Open and LoadSpec refuse each, that the error blames the
// right place, and that its text names that and says what to do.
func refuse(t *testing.T, refusals []refusal) {
	t.Helper()
	for _, r := range refusals {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			c := newCheckpoint("BF16")
			if r.spoil != nil {
				r.spoil(t, c)
			}
			dir := c.write(t)
			if r.after != nil {
				r.after(t, dir)
			}
			_, err := model.Open(dir, model.Options{})
			r.check(t, err)
			if r.bytes {
				return
			}
			_, err = model.LoadSpec(dir, model.Options{})
			r.check(t, err)
		})
	}
}

func (r refusal) check(t *testing.T, err error) {
	t.Helper()
	var is *model.Error
	if !errors.As(err, &is) {
		t.Fatalf("error %v", err)
	}
	text := err.Error()
	if filepath.Base(is.File) != r.file || is.Tensor != r.tensor || is.Field != r.field {
		t.Errorf("blames file %q, tensor %q, field %q: %s", is.File, is.Tensor, is.Field, text)
	}
	for _, part := range []string{is.File, r.tensor, r.field, r.says} {
		if !strings.Contains(text, part) {
			t.Errorf("%q does not say %q", text, part)
		}
	}
	if is.Remedy == "" || strings.ContainsRune(text, '\n') {
		t.Errorf("no remedy, or several lines: %q", text)
	}
}
