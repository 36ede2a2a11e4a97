package drafting

import (
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// text is what the draft model knows of a sequence.
type text struct {
	tokens   []int32           // so far, and then what it drafted
	computed int               // of tokens, the first ones, whose KV is in blocks
	blocks   []kvcache.BlockID // none, or enough for computed
	used     uint64            // the step that last asked
	spoilt   bool              // the draft model can draw nothing after it: it is not computed again
}

// texts are those of the sequences that drafted last, as many as have blocks.
type texts struct {
	blockTokens int
	free        []kvcache.BlockID
	by          map[uint64]*text // by the sequence's name; each has blocks, or is of this step
	step        uint64
}

// idleSteps is for how many steps in which it did not draft a sequence keeps its blocks at least:
// those that take turns would take them from each other, and compute all again each time.
const idleSteps = 32

func newTexts(blocks, blockTokens int) *texts {
	t := &texts{blockTokens: blockTokens, by: make(map[uint64]*text)}
	for id := blocks - 1; id >= 0; id-- {
		t.free = append(t.free, kvcache.BlockID(id))
	}
	return t
}

// begin begins a step.
func (t *texts) begin() { t.step++ }

// of is the text of a sequence whose tokens so far are h. All but the last may be computed.
func (t *texts) of(name uint64, h sampler.History) *text {
	x := t.by[name]
	if x == nil {
		x = new(text)
		t.by[name] = x
	}
	x.used = t.step
	x.follow(h)
	return x
}

// follow makes the text the one that h says: what is the same stays computed.
func (x *text) follow(h sampler.History) {
	same := 0
	for _, part := range [][]int32{h.Prompt, h.Generated} {
		n := commonPrefix(x.tokens[same:], part)
		same += n
		if n < len(part) {
			break
		}
	}
	x.tokens = x.tokens[:same]
	if rest := same - len(h.Prompt); rest >= 0 {
		x.tokens = append(x.tokens, h.Generated[rest:]...)
	} else {
		x.tokens = append(append(x.tokens, h.Prompt[same:]...), h.Generated...)
	}
	x.computed = min(x.computed, same, len(x.tokens)-1)
}

// commonPrefix is how many tokens, from the first on, are the same.
func commonPrefix(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// reserve gives a text the blocks for so many tokens, and says whether there are enough. If there
// are not it changes nothing.
func (t *texts) reserve(x *text, tokens int) bool {
	lacks := kvcache.BlocksFor(tokens, t.blockTokens) - len(x.blocks)
	if lacks > len(t.free) && lacks > len(t.free)+t.evictable() {
		return false
	}
	for lacks > len(t.free) {
		t.evict()
	}
	for range lacks {
		last := len(t.free) - 1
		x.blocks, t.free = append(x.blocks, t.free[last]), t.free[:last]
	}
	return true
}

// idle: the sequence has not drafted for long enough to lose its blocks.
func (t *texts) idle(x *text) bool { return x.used+idleSteps < t.step }

// evictable is how many blocks there are to take from others.
func (t *texts) evictable() (blocks int) {
	for _, x := range t.by {
		if t.idle(x) {
			blocks += len(x.blocks)
		}
	}
	return blocks
}

// evict takes the blocks of who drafted longest ago. There has to be one that is idle.
func (t *texts) evict() {
	var oldest uint64
	var found *text
	for name, x := range t.by {
		if t.idle(x) && (found == nil || x.used < found.used) {
			oldest, found = name, x
		}
	}
	t.drop(oldest)
}

// spoil gives up a text. It keeps a block, and so is known until that is taken from it.
func (t *texts) spoil(x *text) {
	x.computed, x.spoilt = 0, true
	t.free = append(t.free, x.blocks[1:]...)
	x.blocks = x.blocks[:1]
}

// drop forgets a sequence.
func (t *texts) drop(name uint64) {
	if x := t.by[name]; x != nil {
		t.free = append(t.free, x.blocks...)
		delete(t.by, name)
	}
}
