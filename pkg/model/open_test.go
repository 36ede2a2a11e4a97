package model_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/pkg/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const bundled = "../../models/fable"

func open(t *testing.T, dir string, opts model.Options) *model.Model {
	t.Helper()
	m, err := model.Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func ptr[T any](value T) *T { return &value }

func TestOpenBundledModel(t *testing.T) {
	t.Parallel()
	m := open(t, bundled, model.Options{})
	want := model.Spec{
		Name: "fable", Digest: "e2c19e3a1fb92092c2046d2a921201e4", Architecture: "LlamaForCausalLM",
		VocabSize: 4096, HiddenSize: 256, Layers: 4, Heads: 4, KVHeads: 2, HeadSize: 64, FFNSize: 768,
		ContextTokens: 2048, RMSNormEps: 1e-5, RopeTheta: 10000, TiedEmbeddings: true, WeightType: "bf16",
		BOS: 4093, EOS: []int32{4094},
		Sampling: model.SamplingDefaults{Temperature: ptr[float32](0.8), TopP: ptr[float32](0.95)},
	}
	if diff := cmp.Diff(want, m.Spec()); diff != "" {
		t.Error(diff)
	}
	if n := m.Spec().Parameters(); n != 4_196_608 {
		t.Errorf("%d parameters", n)
	}
	if &m.Output().Data[0] != &m.Embedding().Data[0] {
		t.Error("tied, but the output is not the embedding")
	}
	spec, err := model.LoadSpec(bundled, model.Options{Name: "tales"})
	if err != nil {
		t.Fatal(err)
	}
	want.Name, want.Digest = "tales", ""
	if diff := cmp.Diff(want, spec); diff != "" {
		t.Error(diff)
	}
}

// TestOpenReadsEveryTensor compares what is mapped with what was written, for
// each type, in one file and in shards.
func TestOpenReadsEveryTensor(t *testing.T) {
	t.Parallel()
	for _, dtype := range []string{"BF16", "F16", "F32"} {
		for _, shards := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s in %d", dtype, shards), func(t *testing.T) {
				t.Parallel()
				c := newCheckpoint(dtype)
				c.shards = shards
				m := open(t, c.write(t), model.Options{})
				all := tensors(m)
				if len(all) != len(c.tensors) {
					t.Fatalf("%d tensors of %d", len(all), len(c.tensors))
				}
				for i, got := range all {
					want := c.tensors[i] // written in the order of the accessors
					if got.Name != want.name || !slices.Equal(got.Shape, want.shape) || !bytes.Equal(got.Data, want.data) {
						t.Errorf("tensor %d: %s %v differs from %s %v", i, got.Name, got.Shape, want.name, want.shape)
					}
					if filepath.Ext(got.File) != ".safetensors" || cap(got.Data) != len(got.Data) {
						t.Errorf("%s: file %s, capacity %d of %d", got.Name, got.File, cap(got.Data), len(got.Data))
					}
				}
			})
		}
	}
}

// tensors lists a model with separate embeddings in the order of its file.
func tensors(m *model.Model) []model.Tensor {
	all := []model.Tensor{m.Embedding()}
	for i := range m.Spec().Layers {
		l := m.Layer(i)
		all = append(all, l.AttnNorm, l.Q, l.K, l.V)
		for _, some := range []model.Tensor{l.QBias, l.KBias, l.VBias, l.QNorm, l.KNorm} {
			if some.Data != nil {
				all = append(all, some)
			}
		}
		all = append(all, l.O, l.FFNNorm, l.Gate, l.Up, l.Down)
	}
	return append(all, m.FinalNorm(), m.Output())
}

// TestFloat32sAgree: the same numbers, whatever the type that holds them.
func TestFloat32sAgree(t *testing.T) {
	t.Parallel()
	var want []float32
	for _, dtype := range []string{"F32", "F16", "BF16"} {
		q := open(t, newCheckpoint(dtype).write(t), model.Options{}).Layer(1).Q
		got := make([]float32, q.Elements())
		if err := q.Float32s(got, 0); err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = got
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", dtype, got, want)
		}
		row := make([]float32, hidden)
		if err := q.Float32s(row, 3*hidden); err != nil || !slices.Equal(row, want[3*hidden:4*hidden]) {
			t.Errorf("%s: row 3 is %v: %v", dtype, row, err)
		}
		for _, first := range []int{-1, len(want) - hidden + 1, len(want) + 1} {
			if err := q.Float32s(row, first); err == nil {
				t.Errorf("%s: no error from element %d on", dtype, first)
			}
		}
	}
}

func TestOpenAccepts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		spoil func(*testing.T, *checkpoint)
		check func(*testing.T, *model.Model)
	}{
		{"output stored beside a tied embedding", func(t *testing.T, c *checkpoint) {
			c.config["tie_word_embeddings"] = true
			c.tensor(t, "lm_head.weight").data = c.tensor(t, "model.embed_tokens.weight").data
		}, func(t *testing.T, m *model.Model) {
			if m.Output().Name != "model.embed_tokens.weight" {
				t.Error("the output is not the embedding")
			}
		}},
		{"frequencies of old checkpoints", func(_ *testing.T, c *checkpoint) {
			for _, name := range []string{"model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"} {
				c.tensors = append(c.tensors, stored{name, "F32", []int{1}, make([]byte, 4)})
			}
		}, nil},
		{"norms in f32 beside matrices in bf16", func(t *testing.T, c *checkpoint) {
			norm := c.tensor(t, "model.norm.weight")
			norm.dtype, norm.data = "F32", make([]byte, 4*hidden)
		}, func(t *testing.T, m *model.Model) {
			if m.FinalNorm().DType != model.F32 || m.Spec().WeightType != "bf16" {
				t.Errorf("norm %s, model %s", m.FinalNorm().DType, m.Spec().WeightType)
			}
		}},
		{"a type in config.json that the weights do not have", func(_ *testing.T, c *checkpoint) {
			c.config["torch_dtype"] = "float32"
		}, func(t *testing.T, m *model.Model) {
			if m.Spec().WeightType != "bf16" {
				t.Error(m.Spec().WeightType)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newCheckpoint("BF16")
			test.spoil(t, c)
			m := open(t, c.write(t), model.Options{})
			if test.check != nil {
				test.check(t, m)
			}
		})
	}
}

// TestDigest: it follows what decides the result and nothing else.
func TestDigest(t *testing.T) {
	t.Parallel()
	base := open(t, newCheckpoint("BF16").write(t), model.Options{}).Spec().Digest
	if len(base) != 32 {
		t.Fatalf("digest %q", base)
	}
	for _, test := range []struct {
		name  string
		same  bool
		spoil func(*testing.T, *checkpoint)
	}{
		{"shards", true, func(_ *testing.T, c *checkpoint) { c.shards = 4 }},
		{"order of tensors", true, func(_ *testing.T, c *checkpoint) { slices.Reverse(c.tensors) }},
		{"fields that do not matter", true, func(_ *testing.T, c *checkpoint) { c.config["initializer_range"] = 0.5 }},
		{"one bit of a weight", false, func(t *testing.T, c *checkpoint) { c.tensor(t, "model.layers.1.mlp.up_proj.weight").data[3] ^= 1 }},
		{"epsilon", false, func(_ *testing.T, c *checkpoint) { c.config["rms_norm_eps"] = 1e-6 }},
		{"theta", false, func(_ *testing.T, c *checkpoint) { c.config["rope_theta"] = 1e4 }},
		{"end token", false, func(_ *testing.T, c *checkpoint) { c.config["eos_token_id"] = 3 }},
		{"two tensors exchanged", false, func(t *testing.T, c *checkpoint) {
			k, v := c.tensor(t, "model.layers.0.self_attn.k_proj.weight"), c.tensor(t, "model.layers.0.self_attn.v_proj.weight")
			k.data, v.data = v.data, k.data
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newCheckpoint("BF16")
			test.spoil(t, c)
			got := open(t, c.write(t), model.Options{Name: "other"}).Spec().Digest
			if (got == base) != test.same {
				t.Errorf("digest %s beside %s", got, base)
			}
		})
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	type report struct {
		stage       string
		done, total int64
	}
	var got []report
	open(t, bundled, model.Options{Progress: func(stage string, done, total int64) { got = append(got, report{stage, done, total}) }})
	if first := got[0]; first != (report{"map", 0, 1}) {
		t.Errorf("first report %v", first)
	}
	const weights = 4_196_608 * 2
	if last := got[len(got)-1]; last != (report{"digest", weights, weights}) {
		t.Errorf("last report %v", last)
	}
	for i := 1; i < len(got); i++ {
		if got[i].stage == got[i-1].stage && got[i].done <= got[i-1].done {
			t.Errorf("%v after %v", got[i], got[i-1])
		}
	}
}

func TestOpenContextEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := model.OpenContext(ctx, bundled, model.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestCloseTwice(t *testing.T) {
	t.Parallel()
	m, err := model.Open(bundled, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestNameOfDirectory: "." and a trailing slash have a name too.
func TestNameOfDirectory(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{bundled + "/", bundled + "/../fable/."} {
		if spec, err := model.LoadSpec(dir, model.Options{}); err != nil || spec.Name != "fable" {
			t.Errorf("%s: name %q: %v", dir, spec.Name, err)
		}
	}
}

func TestSymlinkedShard(t *testing.T) {
	t.Parallel()
	c := newCheckpoint("BF16")
	c.shards = 2
	dir := c.write(t)
	// Hugging Face's cache keeps files elsewhere and links to them.
	blob := filepath.Join(t.TempDir(), "blob")
	if err := os.Rename(filepath.Join(dir, shardName(0, 2)), blob); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(blob, filepath.Join(dir, shardName(0, 2))); err != nil {
		t.Fatal(err)
	}
	open(t, dir, model.Options{})
}
