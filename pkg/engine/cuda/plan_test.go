package cuda

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
)

// TestPlan: every token of every run is in items that together hold each split it sees
// once, in order of their slots; no result has two items, and what was planned fits.
func TestPlan(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	divided := 0
	for round := range 500 {
		p := planner{group: 1 + r.IntN(kernels.ThinRows), slots: r.IntN(300), thinBlocks: 1 + r.IntN(200), tallBlocks: 1 + r.IntN(200)}
		if r.IntN(3) == 0 {
			p.window = 1 + r.IntN(2000)
		}
		var runs []rows
		row := 0
		for range 1 + r.IntN(20) {
			tokens := 1
			if r.IntN(3) == 0 {
				tokens += r.IntN(300)
			}
			runs = append(runs, rows{row, tokens, r.IntN(5000), 0})
			row += tokens
		}
		var w work
		p.plan(&w, runs)
		checkPlan(t, p, &w, runs)
		divided += len(w.joins)
		if t.Failed() {
			t.Fatalf("round %d: %+v, runs %v", round, p, runs)
		}
	}
	if divided == 0 {
		t.Error("no context was ever divided")
	}
}

// TestPlanRounds: of parts that are a few more than blocks the last ones are divided, unless
// that takes as long.
func TestPlanRounds(t *testing.T) {
	for _, c := range []struct{ sequences, context, thin, joins int }{
		{64, 1024, 49 + 15*4, 15}, // 15 of 4 splits: two rounds of one instead of one of four
		{98, 1024, 98, 0},
		{90, 1024, 90, 0}, // 41 are 164 splits, four rounds
		{64, 256, 64, 0},
		{40, 1024, 40, 0}, // fewer than blocks
		{4, 32768, 4 * 128, 4},
	} {
		p := planner{group: 4, slots: 2048, thinBlocks: 49, tallBlocks: 33}
		var runs []rows
		for i := range c.sequences {
			runs = append(runs, rows{i, 1, c.context - 1, 0})
		}
		var w work
		p.plan(&w, runs)
		checkPlan(t, p, &w, runs)
		if len(w.thin) != c.thin || len(w.joins) != c.joins {
			t.Errorf("%+v: %d items, %d joins", c, len(w.thin), len(w.joins))
		}
	}
}

// TestPlanDeal: no thread block has much more of a long prompt to do than the others.
func TestPlanDeal(t *testing.T) {
	for _, tokens := range []int{1000, 4096, 8000} {
		p := planner{group: 4, slots: 2048, thinBlocks: 49, tallBlocks: 33}
		var w work
		p.plan(&w, []rows{{0, tokens, 0, 0}})
		sums, all := make([]int32, p.tallBlocks), int32(0)
		for i, item := range w.tall {
			sums[i%p.tallBlocks] += length(item)
			all += length(item)
		}
		mean := all / int32(p.tallBlocks)
		if most := slices.Max(sums); most > mean+mean/16 {
			t.Errorf("%d tokens: a block has %d tokens of context, the mean is %d", tokens, most, mean)
		}
	}
}

func checkPlan(t *testing.T, p planner, w *work, runs []rows) {
	t.Helper()
	if w.slots > p.slots {
		t.Errorf("%d slots of %d", w.slots, p.slots)
	}
	bySlot := map[int32]kernels.Item{}
	whole := map[int32]kernels.Item{} // by first row
	for kind, items := range [][]kernels.Item{w.thin, w.tall} {
		most := []int{kernels.ThinRows, kernels.TallRows}[kind]
		for _, item := range items {
			if int(item.Tokens)*p.group > most {
				t.Errorf("an item of %d tokens has more than %d rows", item.Tokens, most)
			}
			if item.Slot < 0 {
				whole[item.Row0] = item
				continue
			}
			if _, twice := bySlot[item.Slot]; twice || item.Last != item.First+1 {
				t.Errorf("slot %d: item %+v", item.Slot, item)
			}
			bySlot[item.Slot] = item
		}
	}
	for _, j := range w.joins {
		first := bySlot[j.Slot]
		for i := range j.Splits {
			item := bySlot[j.Slot+i*j.Stride]
			if item.Row0 != j.Row0 || item.Tokens != j.Tokens || item.First != first.First+i {
				t.Errorf("join %+v: part %d is %+v", j, i, item)
			}
			delete(bySlot, j.Slot+i*j.Stride)
		}
		first.Last = first.First + j.Splits
		whole[j.Row0] = first
	}
	if len(bySlot) > 0 {
		t.Errorf("nobody joins %v", bySlot)
	}
	for _, run := range runs {
		for at := 0; at < run.tokens; {
			item, is := whole[int32(run.row0+at)]
			if !is {
				t.Errorf("row %d of %+v is in no item", at, run)
				return
			}
			delete(whole, item.Row0)
			lastPosition := run.position + at + int(item.Tokens) - 1
			firstSeen := 0
			if p.window > 0 {
				firstSeen = max(0, run.position+at-p.window+1)
			}
			if int(item.Position) != run.position+at || int(item.First) > firstSeen/kernels.SplitTokens || int(item.Last) != lastPosition/kernels.SplitTokens+1 {
				t.Errorf("row %d of %+v: item %+v", at, run, item)
			}
			at += int(item.Tokens)
		}
	}
	if len(whole) > 0 {
		t.Errorf("items of nobody: %v", whole)
	}
}
