package enginetest

import (
	"bytes"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

func testDraws(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	out := mustStep(t, e,
		engine.Sequence{Tokens: prompt(e, 3, 0), Blocks: blocksFor(e, 3, 0)},
		engine.Sequence{Tokens: prompt(e, 4, 1), Blocks: blocksFor(e, 4, 1), Sample: draw(0)})
	if out.Tokens[0] != -1 {
		t.Errorf("token %d for a sequence that asked for none", out.Tokens[0])
	}
	if out.Tokens[1] < 0 || int(out.Tokens[1]) >= e.Model().VocabSize {
		t.Errorf("token %d is not in the vocabulary", out.Tokens[1])
	}
	if out.Logits != nil {
		t.Error("logits that nobody asked for")
	}
	if out.Compute < 0 {
		t.Errorf("computed for %v", out.Compute)
	}
}

func testChunks(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	p := prompt(e, 60, 3)
	want := generate(t, e, p, 8, 0)
	for _, chunk := range []int{1, 7, 16, 33} {
		blocks := blocksFor(e, len(p)+8, 10)
		var last int32
		for start := 0; start < len(p); start += chunk {
			s := engine.Sequence{Tokens: p[start:min(start+chunk, len(p))], Start: start, Blocks: blocks}
			if start+chunk >= len(p) {
				s.Sample = draw(0)
			}
			last = mustStep(t, e, s).Tokens[0]
		}
		got := append([]int32{last}, goOn(t, e, last, len(p), 7, blocks)...)
		if !slices.Equal(got, want) {
			t.Errorf("in chunks of %d %v, at once %v", chunk, got, want)
		}
	}
}

func testBatch(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	const n, each = MinSequences, 6
	var want [][]int32
	sequences := make([]engine.Sequence, n)
	for i := range n {
		p := prompt(e, 3+5*i, 10+i)
		want = append(want, generate(t, e, p, each, 0))
		sequences[i] = engine.Sequence{Tokens: p, Blocks: blocksFor(e, len(p)+each, 5*i), Sample: draw(0)}
	}
	got := make([][]int32, n)
	for step := range each {
		for i, token := range mustStep(t, e, sequences...).Tokens {
			got[i] = append(got[i], token)
			s := &sequences[i]
			s.Start += len(s.Tokens)
			s.Tokens, s.Sample = []int32{token}, draw(step+1)
		}
	}
	for i := range n {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("sequence %d in a batch %v, alone %v", i, got[i], want[i])
		}
	}
}

// testTransfer is disaggregation: one engine computes a prompt, another goes on
// with its pages at other blocks.
func testTransfer(t *testing.T, newEngine NewEngine) {
	from, to := newEngine(t), newEngine(t)
	p := prompt(from, 45, 4)
	const n = 8
	want := generate(t, newEngine(t), p, n, 0)
	source := blocksFor(from, len(p), 7)
	target := blocksFor(to, len(p)+n, 2)
	slices.Reverse(target)
	layout := from.Pages().Layout()
	out, err := from.Step(t.Context(), engine.Batch{
		Sequences: []engine.Sequence{{Tokens: p, Blocks: source, Sample: draw(0)}},
		LayerDone: func(layer int) {
			buffer := make([]byte, len(source)*layout.SliceBytes)
			if err := from.Pages().Read(layer, source, buffer); err != nil {
				t.Errorf("read: %v", err)
			}
			if err := to.Pages().Write(layer, target[:len(source)], buffer); err != nil {
				t.Errorf("write: %v", err)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := append([]int32{out.Tokens[0]}, goOn(t, to, out.Tokens[0], len(p), n-1, target)...)
	if !slices.Equal(got, want) {
		t.Errorf("disaggregated %v, on one engine %v", got, want)
	}
}

func testPages(t *testing.T, newEngine NewEngine) {
	e := newEngine(t)
	p := e.Pages()
	l := p.Layout()
	outside := kvcache.BlockID(e.Capacity().Blocks)
	for _, c := range []struct {
		name   string
		layer  int
		blocks []kvcache.BlockID
		bytes  int
	}{
		{"layer too low", -1, []kvcache.BlockID{0}, l.SliceBytes},
		{"layer too high", l.Layers, []kvcache.BlockID{0}, l.SliceBytes},
		{"block too low", 0, []kvcache.BlockID{-1}, l.SliceBytes},
		{"block too high", 0, []kvcache.BlockID{0, outside}, 2 * l.SliceBytes},
		{"too short", 0, []kvcache.BlockID{0, 1}, 2*l.SliceBytes - 1},
		{"too long", 0, []kvcache.BlockID{0}, l.SliceBytes + 1},
	} {
		if err := p.Read(c.layer, c.blocks, make([]byte, c.bytes)); err == nil {
			t.Errorf("%s: read accepted", c.name)
		}
		if err := p.Write(c.layer, c.blocks, make([]byte, c.bytes)); err == nil {
			t.Errorf("%s: write accepted", c.name)
		}
	}
	blocks := []kvcache.BlockID{4, 2}
	want := make([]byte, 2*l.SliceBytes)
	for i := range want {
		want[i] = byte(i*7 + i>>8)
	}
	last := l.Layers - 1
	if err := p.Write(last, blocks, want); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if err := p.Read(last, blocks, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read back something else than was written (error %v)", err)
	}
	if view := p.View(last, 2); view != nil && !bytes.Equal(view, want[l.SliceBytes:]) {
		t.Error("view shows something else than was written")
	}
}
