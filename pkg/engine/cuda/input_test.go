package cuda

import (
	"math/rand/v2"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// TestOneCopy: what the kernels of a decode step are told goes to the device in one copy,
// which takes all that is in use, whatever the number of sequences and their contexts.
func TestOneCopy(t *testing.T) {
	e := openForLaunches(t, "../../../models/fable")
	r := rand.New(rand.NewPCG(5, 1))
	blocks := make([]kvcache.BlockID, 40)
	for n := 1; n <= e.config.MaxSequences; n++ {
		batch := engine.Batch{}
		for range n {
			s := engine.Sequence{Tokens: []int32{1}, Start: r.IntN(len(blocks) * e.config.BlockTokens), Blocks: blocks}
			if r.IntN(3) > 0 {
				s.Sample = &engine.Sample{}
			}
			batch.Sequences = append(batch.Sequences, s)
		}
		e.in.use(e.graphs.of(batch))
		if !e.in.single {
			t.Fatalf("%d sequences have no graph", n)
		}
		e.in.fill(batch, e.planner, e.config.BlockTokens, e.config.headRows())
		e.program.Reset()
		e.in.send(e.program)
		if got := e.program.Len(); got != 1 {
			t.Errorf("%d sequences: %d copies", n, got)
		}
	}
	e.program.Reset()
	e.in.use(-1)
}

// TestCopies: pieces that lie close are one copy, others are not.
func TestCopies(t *testing.T) {
	e := openForLaunches(t, "../../../models/fable")
	for name, c := range map[string]struct {
		pieces []piece
		want   int
	}{
		"none":           {nil, 0},
		"an empty one":   {[]piece{{64, 64}}, 0},
		"one":            {[]piece{{64, 128}}, 1},
		"from the begin": {[]piece{{0, 128}, {128, 256}}, 1},
		"close":          {[]piece{{64, 128}, {128 + together, 129 + together}}, 1},
		"apart":          {[]piece{{64, 128}, {129 + together, 130 + together}}, 2},
		"empty between":  {[]piece{{64, 128}, {129, 129}, {129 + together, 130 + together}}, 2},
	} {
		e.program.Reset()
		all := copies{program: e.program, in: e.in}
		for _, p := range c.pieces {
			all.add(p)
		}
		all.send()
		if got := e.program.Len(); got != c.want {
			t.Errorf("%s: %d copies, want %d", name, got, c.want)
		}
	}
	e.program.Reset()
}
