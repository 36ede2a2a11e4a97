package kernels_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
)

// packedShape fills neither panels nor groups, and has all that a model can have.
var packedShape = kernels.Shape{
	Hidden: 201, Heads: 4, KVHeads: 2, HeadSize: 10, FFN: 149, Vocab: 83,
	BlockTokens: 16, NormEps: 1e-5, QKVBias: true, QKNorm: true,
}

// source makes matrices of numbers of very different sizes and every element type.
// They are bits, not results of arithmetic: the same on every machine.
type source struct {
	r     *rand.Rand
	types int
}

func (s *source) matrix(rows, columns int) kernels.Matrix {
	m := kernels.Matrix{Type: []string{"bf16", "f16", "f32"}[s.types%3], Rows: rows, Columns: columns}
	s.types++
	for range rows * columns {
		sign, fraction := s.r.Uint32N(2), s.r.Uint32()
		switch m.Type {
		case "bf16":
			m.Data = binary.LittleEndian.AppendUint16(m.Data, uint16(sign<<15|(115+s.r.Uint32N(12))<<7|fraction&0x7f))
		case "f16":
			m.Data = binary.LittleEndian.AppendUint16(m.Data, uint16(sign<<15|s.r.Uint32N(15)<<10|fraction&0x3ff))
		case "f32":
			m.Data = binary.LittleEndian.AppendUint32(m.Data, sign<<31|(115+s.r.Uint32N(12))<<23|fraction&0x7fffff)
		}
	}
	return m
}

func packRandom(t *testing.T, shape kernels.Shape, layers, threads int, tied bool) *kernels.Weights {
	t.Helper()
	pool, err := kernels.NewPool(threads)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	w, err := kernels.NewWeights(pool, shape, layers, tied)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Free)
	s := &source{r: rand.New(rand.NewPCG(11, 11))}
	q, kv := shape.Heads*shape.HeadSize, shape.KVHeads*shape.HeadSize
	for i := range layers {
		err := w.PackLayer(i, kernels.LayerMatrices{
			AttentionNorm: s.matrix(shape.Hidden, 1), FFNNorm: s.matrix(shape.Hidden, 1),
			Q: s.matrix(q, shape.Hidden), K: s.matrix(kv, shape.Hidden), V: s.matrix(kv, shape.Hidden), O: s.matrix(shape.Hidden, q),
			Gate: s.matrix(shape.FFN, shape.Hidden), Up: s.matrix(shape.FFN, shape.Hidden), Down: s.matrix(shape.Hidden, shape.FFN),
			QBias: s.matrix(q, 1), KBias: s.matrix(kv, 1), VBias: s.matrix(kv, 1),
			QNorm: s.matrix(shape.HeadSize, 1), KNorm: s.matrix(shape.HeadSize, 1), Window: 7 * i,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.PackEnds(s.matrix(shape.Vocab, shape.Hidden), s.matrix(shape.Hidden, 1), s.matrix(shape.Vocab, shape.Hidden)); err != nil {
		t.Fatal(err)
	}
	return w
}

func digestOf(w *kernels.Weights) string {
	hash := sha256.New()
	for _, p := range w.Parts() {
		hash.Write(p)
	}
	return hex.EncodeToString(hash.Sum(nil)[:8])
}

// TestPackingVersion pins what packing makes of given matrices. Packed weights are kept
// on disk by PackingVersion: where a digest of a type that was here before changes, the
// version has to, and with it all digests below get the new version.
func TestPackingVersion(t *testing.T) {
	for _, c := range []struct {
		name         string
		layers, head kernels.Format
		version      int
		digest       string
	}{
		{"bf16", kernels.Pairs, kernels.Pairs, 1, "f509b18db314141b"},
		{"int8", kernels.Int8, kernels.Int8, 1, "f9770c419cbc3cff"},
		{"int4", kernels.Int4, kernels.Int8, 1, "4d045656d576e4e2"},
	} {
		shape := packedShape
		shape.Layers, shape.Head = c.layers, c.head
		for _, threads := range []int{1, 3} {
			got := digestOf(packRandom(t, shape, 2, threads, false))
			if got != c.digest || c.version != kernels.PackingVersion {
				t.Errorf("%s, %d threads: version %d packs to %s; known is version %d with %s: if packed bytes were meant to change, raise kernels.PackingVersion and pin both",
					c.name, threads, kernels.PackingVersion, got, c.version, c.digest)
			}
		}
	}
}

// TestParts: the parts are all that packing writes, and no two are the same memory.
func TestParts(t *testing.T) {
	for _, tied := range []bool{false, true} {
		w := packRandom(t, packedShape, 2, 2, tied)
		total := 0
		for i, p := range w.Parts() {
			total += len(p)
			same := true
			for _, b := range p {
				same = same && b == p[0]
			}
			if same {
				t.Errorf("part %d of %d bytes was not packed", i, len(p))
			}
		}
		if total > w.Bytes() {
			t.Errorf("parts of %d bytes in a memory of %d", total, w.Bytes())
		}
		for i, p := range w.Parts() {
			for k := range p {
				p[k] = byte(i)
			}
		}
		for i, p := range w.Parts() {
			if n := bytes.Count(p, []byte{byte(i)}); n != len(p) {
				t.Errorf("%d of %d bytes of part %d are another's too", len(p)-n, len(p), i)
			}
		}
	}
}

func TestSetWindowErrors(t *testing.T) {
	w := packRandom(t, packedShape, 2, 1, true)
	for _, layer := range []int{-1, 2, math.MaxInt} {
		if err := w.SetWindow(layer, 4); err == nil {
			t.Errorf("window of layer %d was set", layer)
		}
	}
}
