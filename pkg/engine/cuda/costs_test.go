package cuda_test

import (
	"path/filepath"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda"
)

// TestBytesPerWeight: what a step reads is what the layers and the output matrix take, all
// but the embedding, the last norm and the angles; of KV, what a page has for a token.
func TestBytesPerWeight(t *testing.T) {
	for _, family := range []string{"llama", "qwen3"} {
		for _, kind := range cuda.WeightTypes() {
			t.Run(family+"/"+string(kind), func(t *testing.T) { testBytesPerWeight(t, loadAs(t, filepath.Join(familiesDir, family), kind)) })
		}
	}
}

func testBytesPerWeight(t *testing.T, w *cuda.Weights) {
	for _, kv := range cuda.KVTypes() {
		config := small()
		config.KV = kv
		spec, c := w.Spec(), newEngine(t, w, config).Capacity()
		if want := float64(c.Layout.SliceBytes) / float64(c.Layout.BlockTokens); c.KVTokenBytes != want {
			t.Errorf("KV in %s: %v bytes a token, want %v", kv, c.KVTokenBytes, want)
		}
		layers := c.BytesPerWeight.Layers * float64(spec.Layers*spec.HiddenSize*(2*spec.Heads*spec.HeadSize+2*spec.KVHeads*spec.HeadSize+3*spec.FFNSize))
		head := c.BytesPerWeight.Head * float64(spec.VocabSize*spec.HiddenSize)
		rows, ld := (spec.VocabSize+127)/128*128, (spec.HiddenSize+63)/64*64
		embedding := float64(2 * rows * ld)
		want := embedding
		if w.Type() == cuda.Int8 {
			want = float64(rows*ld + 4*spec.VocabSize)
		}
		const alignment = 4096 // at most, for the few parts
		if head < want || head > want+alignment {
			t.Errorf("the output matrix takes %v bytes, want %v", head, want)
		}
		rest := embedding + float64(4*spec.HiddenSize+4*spec.ContextTokens*spec.HeadSize)
		if spec.TiedEmbeddings && w.Type() != cuda.Int8 {
			rest -= embedding // it is what is read
		}
		if took := layers + head + rest; took < float64(w.Bytes())-alignment || took > float64(w.Bytes())+alignment {
			t.Errorf("of %d bytes of weights %v are accounted for", w.Bytes(), took)
		}
	}
}
