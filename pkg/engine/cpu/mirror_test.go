package cpu_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// pagesAsMirror has pages of another engine for blocks of a table, from first on. They can be held for
// so many layers.
type pagesAsMirror struct {
	t      *testing.T
	pages  engine.Pages
	first  int
	layers int
	held   bool
	holds  int
}

func (m *pagesAsMirror) Hold(int) bool {
	if m.held {
		m.t.Error("held twice")
	}
	if m.holds == m.layers {
		return false
	}
	m.holds++
	m.held = true
	return true
}

func (m *pagesAsMirror) Release() {
	if !m.held {
		m.t.Error("released, but not held")
	}
	m.held = false
}

func (m *pagesAsMirror) View(layer, block int) []byte {
	if !m.held {
		m.t.Error("looked at, but not held")
	}
	if block < m.first {
		return nil
	}
	return m.pages.View(layer, kvcache.BlockID(block))
}

// TestMirror: a step writes the same into a mirror as into its own pages, where the mirror has slices
// and for as long as it can be held. Its logits do not change.
func TestMirror(t *testing.T) { inEachClass(t, inMirror) }

func inMirror(t *testing.T, c class) {
	const blocks, computed, first = 9, 2, 4 // blocks of a sequence; those that a step before computes; the first one with a mirror
	w := loadFableAs(t, c.weights, 3)
	layers := w.Spec().Layers
	r := rand.New(rand.NewPCG(2, 7))
	for _, threads := range []int{1, 3} {
		config := cpu.Config{KV: c.kv, Blocks: 3 * blocks, MaxBatchTokens: 600, Threads: threads}
		e, other, plain := newEngine(t, w, config), newEngine(t, w, config), newEngine(t, w, config)
		dirty(t, e)
		dirty(t, other)
		size := e.Capacity().Layout.BlockTokens
		tokens := randomTokens(r, blocks*size-3, w.Spec().VocabSize)
		want := logitsOf(t, plain, tokens, table(0, blocks))
		logitsOf(t, e, tokens[:computed*size], table(0, blocks))

		whole := &pagesAsMirror{t: t, pages: other.Pages(), first: first, layers: layers}
		short := &pagesAsMirror{t: t, pages: other.Pages(), first: first, layers: 2}
		same := func(layer, block, table int) bool {
			b := kvcache.BlockID(table*blocks + block)
			return bytes.Equal(e.Pages().View(layer, b), other.Pages().View(layer, b))
		}
		untouched := func(layer, block, table int) bool {
			slice := other.Pages().View(layer, kvcache.BlockID(table*blocks+block))
			return bytes.Count(slice, []byte{0xff}) == len(slice)
		}
		out, err := e.Step(t.Context(), engine.Batch{
			Sequences: []engine.Sequence{
				{Tokens: tokens[:2*size], Blocks: table(2*blocks, blocks)},
				{Tokens: tokens[computed*size:], Start: computed * size, Blocks: table(0, blocks), Logits: engine.LogitsAll},
				{Tokens: tokens[:6*size], Blocks: table(blocks, blocks)},
			},
			Mirrors: []engine.Mirror{nil, whole, shifted{short, blocks}},
			LayerDone: func(layer int) {
				if whole.held || short.held {
					t.Error("a mirror is held when its layer is done")
				}
				for block := computed; block < blocks; block++ {
					if block < first && !untouched(layer, block, 0) || block >= first && !same(layer, block, 0) {
						t.Errorf("layer %d of block %d: the mirror has something else", layer, block)
					}
				}
				for block := first; block < 6; block++ {
					if layer < short.layers && !same(layer, block, 1) || layer >= short.layers && !untouched(layer, block, 1) {
						t.Errorf("layer %d of block %d: the mirror of which %d layers can be written", layer, block, short.layers)
					}
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if whole.holds != layers {
			t.Errorf("held for %d of %d layers", whole.holds, layers)
		}
		sameBits(t, "logits beside a mirror", out.Logits[1], want[computed*size:])
	}
}

// shifted is a mirror whose pages are those of other blocks, by so many.
type shifted struct {
	*pagesAsMirror
	by int
}

func (m shifted) View(layer, block int) []byte {
	if block < m.first {
		return nil
	}
	return m.pagesAsMirror.View(layer, block+m.by)
}
