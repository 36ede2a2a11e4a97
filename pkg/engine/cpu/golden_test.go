package cpu_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// golden pins the arithmetic class: SHA-256 of the logits and KV pages of
// TestGolden's prompt. On any processor, with any compiler and at any later
// time, this engine computes these bits. Who changes them changes the class:
// cpu.ArithmeticClass and docs/decisions/0002-cpu-arithmetic.md.
const golden = "253745cf88662b0a40066d9d14caabea43e5a3a0699ab214317d5c3ec73f8e6c"

func TestGolden(t *testing.T) {
	e := newEngine(t, loadFable(t, 2), cpu.Config{Blocks: 9, MaxBatchTokens: 288})
	tokens := prompt(288, 4096)
	hash := sha256.New()
	for _, row := range logitsOf(t, e, tokens, table(0, 9))[280:] {
		for _, x := range row {
			_ = binary.Write(hash, binary.LittleEndian, math.Float32bits(x)) // a hash takes everything
		}
	}
	for layer := range e.Model().Layers {
		for block := range kvcache.BlockID(9) {
			hash.Write(e.Pages().View(layer, block))
		}
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != golden {
		t.Errorf("digest of logits and pages is %s, the class's is %s", got, golden)
	}
}
