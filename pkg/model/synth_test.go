package model_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

func preset(t *testing.T, name string) model.Shape {
	t.Helper()
	shape, err := model.Preset(name)
	if err != nil {
		t.Fatal(err)
	}
	return shape
}

// synthesize writes a model to a new directory.
func synthesize(t *testing.T, shape model.Shape, opts model.SynthOptions) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "parent", "synthetic")
	if err := model.Synthesize(t.Context(), dir, shape, opts); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestPresets pins the shapes that people compare results by.
func TestPresets(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		hidden, layers, heads, kvHeads, headSize, ffn, vocabulary int
		tied                                                      bool
	}{
		"bench-200m": {1024, 16, 16, 4, 64, 2816, 32000, true},
		"bench-1b":   {2048, 16, 32, 8, 64, 8192, 128256, true},
		"bench-8b":   {4096, 32, 32, 8, 128, 14336, 128256, false},
	} {
		s := preset(t, name)
		got := want
		got.hidden, got.layers, got.heads, got.kvHeads, got.headSize, got.ffn, got.vocabulary, got.tied = s.HiddenSize, s.Layers, s.Heads, s.KVHeads, s.HeadSize, s.FFNSize, s.VocabSize, s.TiedEmbeddings
		if got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	if _, err := model.Preset("bench-9b"); err == nil || !strings.Contains(err.Error(), `"bench-9b": choose one of tiny, tiny-llama3, tiny-mistral`) {
		t.Errorf("unknown preset: %v", err)
	}
}

// TestSynthesizeRoundTrip opens what was written. The digest is pinned: figures
// of benchmarks are compared over versions on the promise of the same weights.
func TestSynthesizeRoundTrip(t *testing.T) {
	t.Parallel()
	const digest = "3f5a14266713bee14265528a3889ea83"
	for _, opts := range []model.SynthOptions{{}, {ShardBytes: 40_000}, {ShardBytes: 1}} {
		m := open(t, synthesize(t, preset(t, "tiny"), opts), model.Options{})
		want := model.Spec{
			Name: "synthetic", Digest: digest, Architecture: "LlamaForCausalLM", VocabSize: 512, HiddenSize: 64, Layers: 2, Heads: 4, KVHeads: 2,
			HeadSize: 16, FFNSize: 160, ContextTokens: 512, RMSNormEps: 1e-5, RopeTheta: 10000, WeightType: "bf16", BOS: 510, EOS: []int32{511},
		}
		if diff := cmp.Diff(want, m.Spec()); diff != "" {
			t.Errorf("shards of %d: %s", opts.ShardBytes, diff)
		}
	}
	if other := open(t, synthesize(t, preset(t, "tiny"), model.SynthOptions{Seed: 1}), model.Options{}); other.Spec().Digest == digest {
		t.Error("another seed made the same weights")
	}
}

// TestSynthesizeOddSizes: a norm of an odd number of elements ends in the middle
// of a word of randomness.
func TestSynthesizeOddSizes(t *testing.T) {
	t.Parallel()
	shape := preset(t, "tiny")
	shape.HiddenSize, shape.FFNSize, shape.VocabSize = 65, 33, 301
	m := open(t, synthesize(t, shape, model.SynthOptions{}), model.Options{})
	norm := make([]float32, 65)
	if err := m.FinalNorm().Float32s(norm, 0); err != nil {
		t.Fatal(err)
	}
	if last := norm[64]; last < 0.8 || last > 1.2 {
		t.Errorf("last element %g", last)
	}
}

// TestSynthesizeSameBytes compares files, the ones beside the weights included.
func TestSynthesizeSameBytes(t *testing.T) {
	t.Parallel()
	shape := preset(t, "tiny")
	shape.TiedEmbeddings = true
	first, second := synthesize(t, shape, model.SynthOptions{Seed: 3}), synthesize(t, shape, model.SynthOptions{Seed: 3})
	files, err := os.ReadDir(first)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		names = append(names, file.Name())
		a, errA := os.ReadFile(filepath.Join(first, file.Name()))
		b, errB := os.ReadFile(filepath.Join(second, file.Name()))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs: %v, %v", file.Name(), errA, errB)
		}
	}
	if diff := cmp.Diff([]string{"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}, names); diff != "" {
		t.Error(diff)
	}
}

// TestSynthesizedWeights have the spread that they should, without a pattern
// from one element or tensor to the next.
func TestSynthesizedWeights(t *testing.T) {
	t.Parallel()
	shape := preset(t, "tiny")
	shape.HiddenSize, shape.VocabSize = 256, 2048
	m := open(t, synthesize(t, shape, model.SynthOptions{}), model.Options{})
	perInput := 1 / math.Sqrt(256)
	for _, test := range []struct {
		tensor          model.Tensor
		mean, deviation float64
	}{
		{m.Embedding(), 0, perInput},
		{m.Output(), 0, perInput},
		{m.Layer(0).Q, 0, perInput},
		{m.Layer(1).Gate, 0, perInput},
		{m.Layer(1).O, 0, 1 / math.Sqrt(64) / 2},
		{m.Layer(0).Down, 0, 1 / math.Sqrt(160) / 2},
		{m.Layer(0).AttnNorm, 1, 0.05},
		{m.FinalNorm(), 1, 0.05},
	} {
		spread(t, test.tensor, test.mean, test.deviation)
	}
	if bytes.Equal(m.Layer(0).Gate.Data[:64], m.Layer(0).Up.Data[:64]) {
		t.Error("two tensors are the same")
	}
}

// spread checks the mean and the deviation of a tensor, and that neighbours have
// nothing to do with each other.
func spread(t *testing.T, tensor model.Tensor, mean, expected float64) {
	t.Helper()
	x := make([]float32, tensor.Elements())
	if err := tensor.Float32s(x, 0); err != nil {
		t.Fatal(err)
	}
	n := float64(len(x))
	var sum, squares, neighbours float64
	for i, v := range x {
		d := float64(v) - mean
		sum, squares = sum+d, squares+d*d
		if i > 0 {
			neighbours += d * (float64(x[i-1]) - mean)
		}
	}
	deviation := math.Sqrt(squares / n)
	if math.Abs(sum/n) > 4*expected/math.Sqrt(n) || math.Abs(deviation/expected-1) > 4/math.Sqrt(n) || math.Abs(neighbours/squares) > 4/math.Sqrt(n) {
		t.Errorf("%s: mean off by %g, deviation %g instead of %g, neighbours correlate by %g", tensor.Name, sum/n, deviation, expected, neighbours/squares)
	}
}

// tokenizerFile is what the test reads of a tokenizer.json.
type tokenizerFile struct {
	AddedTokens []struct {
		ID      int
		Content string
		Special bool
	} `json:"added_tokens"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	Decoder       json.RawMessage
	PostProcessor struct {
		Type string
	} `json:"post_processor"`
	Model struct {
		Type   string
		Vocab  map[string]int
		Merges [][2]string
	}
}

func readTokenizer(t *testing.T, dir string) tokenizerFile {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file tokenizerFile
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestSynthesizedTokenizer: every id is there once, the bytes are where the
// bundled tokenizer has them, and every merge joins what earlier ids are.
func TestSynthesizedTokenizer(t *testing.T) {
	t.Parallel()
	trained := readTokenizer(t, bundled)
	for _, size := range []int{258, 512, 2000, 40_000} {
		shape := preset(t, "tiny")
		shape.VocabSize = size
		got := readTokenizer(t, synthesize(t, shape, model.SynthOptions{}))
		texts := make([]string, size)
		for text, id := range got.Model.Vocab {
			if id < 0 || id >= size-2 || texts[id] != "" {
				t.Fatalf("vocabulary of %d: id %d is %q and %q", size, id, text, texts[id])
			}
			texts[id] = text
		}
		for id := range 256 {
			if trained.Model.Vocab[texts[id]] != id {
				t.Errorf("byte %d is %q", id, texts[id])
			}
		}
		if len(got.Model.Merges) != size-258 || len(got.Model.Vocab) != size-2 {
			t.Fatalf("%d merges and %d tokens in a vocabulary of %d", len(got.Model.Merges), len(got.Model.Vocab), size)
		}
		for i, pair := range got.Model.Merges {
			left, okLeft := got.Model.Vocab[pair[0]]
			right, okRight := got.Model.Vocab[pair[1]]
			if id := got.Model.Vocab[pair[0]+pair[1]]; !okLeft || !okRight || id != 256+i || left >= id || right >= id {
				t.Fatalf("merge %d of %q makes %d", i, pair, id)
			}
		}
		for i, want := range []string{"<|begin_of_text|>", "<|end_of_text|>"} {
			if a := got.AddedTokens[i]; a.ID != size-2+i || a.Content != want || !a.Special {
				t.Errorf("added token %+v", a)
			}
		}
		for name, pair := range map[string][2]json.RawMessage{"pre_tokenizer": {got.PreTokenizer, trained.PreTokenizer}, "decoder": {got.Decoder, trained.Decoder}} {
			var a, b any
			if err := errors.Join(json.Unmarshal(pair[0], &a), json.Unmarshal(pair[1], &b)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(b, a); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	}
}

// TestTokenizerReadsSynthesized: the file is one that the tokenizer accepts, its
// merges are at work, and texts come back.
func TestTokenizerReadsSynthesized(t *testing.T) {
	t.Parallel()
	shape := preset(t, "tiny")
	shape.VocabSize = 40_000
	tok, err := tokenizer.Open(synthesize(t, shape, model.SynthOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	if tok.VocabSize() != shape.VocabSize {
		t.Errorf("vocabulary of %d", tok.VocabSize())
	}
	const text = "Once upon a time there was a queen, who had 3 sons; «Ünïcode» 東京\n\tand the end."
	ids := tok.Encode(text, true)
	if got := tok.Decode(ids, true); got != text {
		t.Errorf("%q came back", got)
	}
	if ids[0] != 39_998 || len(ids) > len(text)*2/3 {
		t.Errorf("%d tokens of %d bytes: %v", len(ids), len(text), ids)
	}
}

func TestSynthesizeRefuses(t *testing.T) {
	t.Parallel()
	edit := func(change func(*model.Shape)) model.Shape {
		shape := preset(t, "tiny")
		change(&shape)
		return shape
	}
	for _, test := range []struct {
		name  string
		shape model.Shape
		says  string
	}{
		{"more than the disk", edit(func(s *model.Shape) { s.Layers, s.HiddenSize, s.FFNSize = 4096, 1<<17, 1<<20 }), "MB are free, but the model needs"},
		{"no layers", edit(func(s *model.Shape) { s.Layers = 0 }), "num_hidden_layers"},
		{"heads of odd size", edit(func(s *model.Shape) { s.HeadSize = 7 }), "head_dim"},
		{"fewer tokens than bytes", edit(func(s *model.Shape) { s.VocabSize = 257 }), "between 258 and"},
		{"more tokens than merges", edit(func(s *model.Shape) { s.VocabSize = 1 << 20 }), "between 258 and"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "new")
			err := model.Synthesize(t.Context(), dir, test.shape, model.SynthOptions{})
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v", err)
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("left a directory: %v", err)
			}
		})
	}
}

func TestSynthesizeKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "notes"), []byte("mine"))
	if err := model.Synthesize(t.Context(), dir, preset(t, "tiny"), model.SynthOptions{}); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("error %v", err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("%v: %v", names, err)
	}
}

// TestSynthesizeCancelled: nothing is left behind, and while it runs the
// directory is no model.
func TestSynthesizeCancelled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	shape := preset(t, "tiny")
	shape.HiddenSize, shape.FFNSize = 1024, 8192 // many chunks
	err := model.Synthesize(ctx, dir, shape, model.SynthOptions{Progress: func(_ string, done, _ int64) {
		if done > 0 {
			if _, err := model.LoadSpec(dir, model.Options{}); err == nil {
				t.Error("an unfinished model could be opened")
			}
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("left %v: %v", names, err)
	}
}
