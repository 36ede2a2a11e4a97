package kvcache

import (
	"math/bits"
	"math/rand/v2"
)

// hashTable finds published blocks by their hashes. Its chains go through the blocks
// themselves, which a look-up reads anyway, and it never grows: no step waits for that.
type hashTable struct {
	chains []BlockID // the first of each; their number is a power of two
	len    int       // blocks in it
	// factor is odd, and nobody outside knows it: prompts whose hashes share a chain cannot be
	// made.
	factor uint64
}

func newHashTable(blocks int) hashTable {
	t := hashTable{chains: make([]BlockID, 1<<bits.Len(uint(blocks))), factor: rand.Uint64() | 1}
	for i := range t.chains {
		t.chains[i] = none
	}
	return t
}

func (t *hashTable) chain(hash Hash) *BlockID {
	return &t.chains[uint64(hash)*t.factor>>(65-bits.Len(uint(len(t.chains))))]
}

// find is the block with a hash, none if there is none.
func (t *hashTable) find(blocks []block, hash Hash) BlockID {
	id := *t.chain(hash)
	for id != none && blocks[id].hash != hash {
		id = blocks[id].next
	}
	return id
}

// add adds a block whose hash no other has.
func (t *hashTable) add(blocks []block, id BlockID) {
	first := t.chain(blocks[id].hash)
	blocks[id].next = *first
	*first = id
	t.len++
}

// delete takes a block out that is in.
func (t *hashTable) delete(blocks []block, id BlockID) {
	at := t.chain(blocks[id].hash)
	for *at != id {
		at = &blocks[*at].next
	}
	*at = blocks[id].next
	t.len--
}
