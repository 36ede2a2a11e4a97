package kvcache

import (
	"math/bits"
	"math/rand/v2"
)

// hashTable finds blocks by their hashes. They are numbered from 0 to less than what it was made
// for. It never grows, so nothing waits for that, and has no pointer for the garbage collector to
// follow.
type hashTable struct {
	chains []int32 // the first of each, plus 1; their number is a power of two
	nodes  []hashNode
	len    int // blocks in it
	// factor is odd, and nobody outside knows it: prompts whose hashes share a chain cannot be
	// made.
	factor       uint64
	prefetchSink int32 // see package kvcache
}

type hashNode struct {
	hash Hash
	next int32 // in its chain, plus 1; 0: it is the last
}

// absent is no block's number.
const absent = -1

func newHashTable(blocks int) hashTable {
	chains := 1 << bits.Len(uint(blocks))
	if chains <= sparseChains { // they take little memory, and most are of one block at most
		chains *= 4
	}
	return hashTable{chains: make([]int32, chains), nodes: make([]hashNode, blocks), factor: rand.Uint64() | 1}
}

const sparseChains = 1 << 14

func (t *hashTable) chain(hash Hash) *int32 {
	return &t.chains[uint64(hash)*t.factor>>(65-bits.Len(uint(len(t.chains))))]
}

// find is the number of the block with a hash, or absent.
func (t *hashTable) find(hash Hash) int32 {
	n := *t.chain(hash) - 1
	for n != absent && t.nodes[n].hash != hash {
		n = t.nodes[n].next - 1
	}
	return n
}

// fetch reads what find or delete of a hash will read first. A processor waits for many lines of
// memory at a time where none of them has to be there for the next.
func (t *hashTable) fetch(hash Hash) { t.prefetchSink += *t.chain(hash) }

// fetchFirst reads what they will read next, once fetch has been called.
func (t *hashTable) fetchFirst(hash Hash) {
	if n := *t.chain(hash) - 1; n != absent {
		t.prefetchSink += t.nodes[n].next
	}
}

// hash is that of a block which is in.
func (t *hashTable) hash(n int32) Hash { return t.nodes[n].hash }

// add adds a block that is not in, with a hash that no other has.
func (t *hashTable) add(n int32, hash Hash) {
	first := t.chain(hash)
	t.nodes[n] = hashNode{hash, *first}
	*first = n + 1
	t.len++
}

// delete takes a block out that is in.
func (t *hashTable) delete(n int32) {
	at := t.chain(t.nodes[n].hash)
	for *at != n+1 {
		at = &t.nodes[*at-1].next
	}
	*at = t.nodes[n].next
	t.len--
}
