package engine_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// TestNewTokens: they are in the caller's room where that is large enough, and begin
// with nothing drawn whatever was there.
func TestNewTokens(t *testing.T) {
	room := []int32{7, 8, 9, 10}
	for _, c := range []struct {
		name      string
		sequences int
		room      []int32
		within    bool
	}{
		{"no room", 3, nil, false},
		{"too little", 3, room[:2:2], false},
		{"just enough", 4, room, true},
		{"more than enough", 2, room, true},
		{"capacity alone", 4, room[:0], true},
	} {
		copy(room, []int32{7, 8, 9, 10})
		got := engine.Batch{Sequences: make([]engine.Sequence, c.sequences), TokenBuffer: c.room}.NewTokens()
		if len(got) != c.sequences || slices.ContainsFunc(got, func(token int32) bool { return token != -1 }) {
			t.Errorf("%s: %v for %d sequences", c.name, got, c.sequences)
		}
		if (&got[0] == &room[0]) != c.within {
			t.Errorf("%s: in the room %v, want %v", c.name, !c.within, c.within)
		}
		if !c.within && room[0] != 7 {
			t.Errorf("%s: wrote into a room that is too small", c.name)
		}
	}
}

// TestValidatorForgets: what one batch wrote, or one that was refused, says nothing of
// the next.
func TestValidatorForgets(t *testing.T) {
	capacity, spec := limits()
	v := engine.NewValidator(capacity, spec)
	one := func(start int, ids ...kvcache.BlockID) engine.Sequence {
		return engine.Sequence{Tokens: []int32{1}, Start: start, Blocks: ids}
	}
	for i, c := range []struct {
		sequences []engine.Sequence
		says      string // empty: valid
	}{
		{[]engine.Sequence{one(0, 5), one(0, 6)}, ""},
		{[]engine.Sequence{one(0, 6), one(0, 5)}, ""},
		{[]engine.Sequence{one(0, 3), one(0, 3)}, "both write block 3"},
		{[]engine.Sequence{one(0, 3)}, ""},
		{[]engine.Sequence{one(4, 3, 4), one(4, 3, 5)}, ""}, // reads what the last wrote
		{[]engine.Sequence{one(4, 3, 4), one(0, 3)}, "reads block 3"},
		{[]engine.Sequence{one(4, 3, 4)}, ""},
	} {
		err := v.Validate(engine.Batch{Sequences: c.sequences})
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("batch %d: %v, which should speak of %q", i, err, c.says)
		}
	}
}

// TestValidatorAllocatesNothing: a batch that passes costs no memory.
func TestValidatorAllocatesNothing(t *testing.T) {
	capacity, spec := limits()
	capacity.MaxSequences, capacity.Blocks = 40, 80
	var batch engine.Batch
	for i := range capacity.MaxSequences / 4 {
		batch.Sequences = append(batch.Sequences, engine.Sequence{Tokens: []int32{1}, Start: 4, Blocks: []kvcache.BlockID{0, kvcache.BlockID(i + 1)}})
	}
	v := engine.NewValidator(capacity, spec)
	if n := testing.AllocsPerRun(10, func() {
		if err := v.Validate(batch); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
