package cpu_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"math"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// golden pins the arithmetic class: SHA-256 of the logits and KV pages of
// TestGolden's prompt. On any processor, with any compiler and at any later
// time, this engine computes these bits. Who changes them changes the class:
// cpu.WeightType.ArithmeticClass and docs/decisions/0002-cpu-arithmetic.md.
const golden = "253745cf88662b0a40066d9d14caabea43e5a3a0699ab214317d5c3ec73f8e6c"

// goldenInt8 is the same of the class with int8 weights:
// docs/decisions/0011-int8-weights.md.
const goldenInt8 = "5122d932f77493c164ee06130a2084b3870a6fb71602e22d35e40d4d451b1a03"

// goldenInt4 is the same of the class with int4 weights:
// docs/decisions/0012-int4-weights.md.
const goldenInt4 = "c2dec75291eb2aa87a0296790db097bd508452b74d08539603cb3c9a84e6c4fe"

// goldenInt8KV is the same of the class with KV in int8: docs/decisions/0013-int8-kv.md.
const goldenInt8KV = "971c15448b3e839bc82206e4798565d35ae4ef1c9f4303299d6200b793ead7ba"

// goldenFamilies pins what the other families add, over all of testdata/families.
const goldenFamilies = "063be86e37b884fcef9238dbd8a5bc5c465105d4c3d357cf27863f5a5cd2d80d"

func TestGolden(t *testing.T) {
	for c, want := range map[class]string{
		{cpu.BF16, cpu.KVBF16}: golden, {cpu.Int8, cpu.KVBF16}: goldenInt8, {cpu.Int4, cpu.KVBF16}: goldenInt4, {cpu.BF16, cpu.KVInt8}: goldenInt8KV,
	} {
		e := newEngine(t, loadFableAs(t, c.weights, 2), cpu.Config{KV: c.kv, Blocks: 9, MaxBatchTokens: 288})
		sum := sha256.New()
		addBits(t, sum, e, prompt(288, 4096), 280)
		if got := hex.EncodeToString(sum.Sum(nil)); got != want {
			t.Errorf("%s: digest of logits and pages is %s, the class's is %s", e.Capacity().Layout.ArithmeticClass, got, want)
		}
	}
}

func TestGoldenFamilies(t *testing.T) {
	sum := sha256.New()
	for _, family := range families(t) {
		e := newEngine(t, loadFamily(t, family, 2), cpu.Config{Blocks: 9, MaxBatchTokens: 288})
		addBits(t, sum, e, prompt(min(288, e.Model().ContextTokens), e.Model().VocabSize), 0)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != goldenFamilies {
		t.Errorf("digest of logits and pages is %s, the class's is %s", got, goldenFamilies)
	}
}

// addBits computes tokens and adds the logits from row `first` on and all pages.
func addBits(t *testing.T, to hash.Hash, e engine.Engine, tokens []int32, first int) {
	t.Helper()
	for _, row := range logitsOf(t, e, tokens, table(0, 9))[first:] {
		for _, x := range row {
			_ = binary.Write(to, binary.LittleEndian, math.Float32bits(x)) // a hash takes everything
		}
	}
	for layer := range e.Model().Layers {
		for block := range kvcache.BlockID(9) {
			to.Write(e.Pages().View(layer, block))
		}
	}
}
