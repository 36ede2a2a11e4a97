package kernels_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
)

func planShape(heads, kvHeads int) kernels.Shape {
	return kernels.Shape{Hidden: 8, Heads: heads, KVHeads: kvHeads, HeadSize: 64, FFN: 8, Vocab: 8, BlockTokens: 32}
}

func plan(t interface {
	Helper()
	Fatal(args ...any)
}, threads int, shape kernels.Shape, bounds kernels.BatchBounds, batch []kernels.Span) (items []kernels.Item, counters, results int) {
	t.Helper()
	items, counters, results, err := kernels.PlanOf(threads, shape, bounds, batch)
	if err != nil {
		t.Fatal(err)
	}
	return items, counters, results
}

// TestPlanIsWhole: whatever the batch, every token is in one item for each KV head, an
// item has all its parts, and no two items share a counter or room for results.
func TestPlanIsWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kv := rapid.IntRange(1, 4).Draw(t, "KV heads")
		shape := planShape(kv*rapid.SampledFrom([]int{1, 2, 4, 7, 40}).Draw(t, "group"), kv)
		bounds := kernels.BatchBounds{Rows: 400, Sequences: 8, HeadRows: 1, BlocksPerSequence: rapid.IntRange(16, 512).Draw(t, "blocks")}
		context := bounds.BlocksPerSequence * shape.BlockTokens
		var batch []kernels.Span
		for range rapid.IntRange(1, 8).Draw(t, "sequences") {
			count := rapid.SampledFrom([]int{0, 1, 1, 1, 3, 9, 50}).Draw(t, "tokens")
			batch = append(batch, kernels.Span{Start: rapid.IntRange(0, context-count).Draw(t, "start"), Count: count})
		}
		threads := rapid.IntRange(1, 20).Draw(t, "threads")
		items, counters, room := plan(t, threads, shape, bounds, batch)

		type key struct{ sequence, kvHead, token, part int }
		seen := map[key]bool{}
		counter := map[int]kernels.Item{}
		var rooms [][2]int
		for _, i := range items {
			for token := i.First; token < i.First+i.Count; token++ {
				k := key{i.Sequence, i.KVHead, token, i.Part}
				if seen[k] {
					t.Fatalf("%+v is computed twice", k)
				}
				seen[k] = true
			}
			if i.Parts == 1 {
				continue
			}
			if threads == 1 {
				t.Fatal("an item is divided for one thread")
			}
			if i.Whole < 0 || i.Whole >= counters {
				t.Fatalf("counter %d of %d, or it does not hold the parts", i.Whole, counters)
			}
			first, found := counter[i.Whole]
			if !found {
				counter[i.Whole] = i
				rooms = append(rooms, [2]int{i.Results, i.ResultsEnd})
			}
			if first.Part = i.Part; found && first != i {
				t.Fatalf("%+v has the counter of %+v", i, first)
			}
		}
		for sequence, q := range batch {
			for token := range q.Count {
				for h := range kv {
					if !seen[key{sequence, h, token, 0}] {
						t.Fatalf("token %d of sequence %d has no item for KV head %d", token, sequence, h)
					}
				}
			}
		}
		for _, i := range items {
			for part := range i.Parts {
				if !seen[key{i.Sequence, i.KVHead, i.First, part}] {
					t.Fatalf("%+v lacks part %d", i, part)
				}
			}
		}
		slices.SortFunc(rooms, func(a, b [2]int) int { return a[0] - b[0] })
		end := 0
		for _, r := range rooms {
			if r[0] < end || r[1] > room {
				t.Fatalf("results at %v: others end at %d, the room at %d", r, end, room)
			}
			end = r[1]
		}
	})
}

// TestPlanShares: who has too few items for the threads divides them, others do not.
func TestPlanShares(t *testing.T) {
	bounds := kernels.BatchBounds{Rows: 512, Sequences: 32, HeadRows: 1, BlocksPerSequence: 1024}
	for _, c := range []struct {
		name    string
		threads int
		kvHeads int
		batch   []kernels.Span
		items   int
		parts   []int // how many parts items have
	}{
		{"one token, four KV heads, two threads", 2, 4, []kernels.Span{{16000, 1}}, 16, []int{4}},
		{"one token, one KV head, 16 threads", 16, 1, []kernels.Span{{32000, 1}}, 126, []int{126}},
		{"one token, one split", 16, 4, []kernels.Span{{255, 1}}, 4, []int{1}},
		{"one token, two splits", 16, 4, []kernels.Span{{256, 1}}, 8, []int{2}},
		{"one thread", 1, 4, []kernels.Span{{16000, 1}}, 4, []int{1}},
		{"a long one among short ones", 2, 1, []kernels.Span{{100, 1}, {16000, 1}, {100, 1}}, 18, []int{1, 16}},
		{"as many as are needed", 2, 4, []kernels.Span{{900, 1}, {900, 1}, {900, 1}, {900, 1}}, 16, []int{1}},
		{"a prompt", 2, 4, []kernels.Span{{0, 512}}, 172, []int{1}},
	} {
		items, _, _ := plan(t, c.threads, planShape(4*c.kvHeads, c.kvHeads), bounds, c.batch)
		var parts []int
		for _, i := range items {
			parts = append(parts, i.Parts)
		}
		slices.Sort(parts)
		if parts = slices.Compact(parts); len(items) != c.items || !slices.Equal(parts, c.parts) {
			t.Errorf("%s: %d items in parts of %v, want %d in %v", c.name, len(items), parts, c.items, c.parts)
		}
	}
}
