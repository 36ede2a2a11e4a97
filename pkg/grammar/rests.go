package grammar

// rests is what is left of tokens behind texts that they begin with.
type rests struct {
	trie *trie
	// ends are the tokens of which nothing is left.
	ends tokens
	from []restsFrom
	// classes are nodes of tries of classes: what is left begins behind the texts that they have.
	classes []classRests
}

// restsFrom is the nodes of a trie from which rests go on, all with the same byte.
type restsFrom struct {
	b     byte
	nodes []int32
}

type classRests struct {
	trie *classTrie
	node *classNode
}

// restsOf is all texts of a trie; nil if it has none.
func restsOf(t *trie) *rests {
	if len(t.whole) == 0 && len(t.bytes) == 0 {
		return nil
	}
	r := &rests{trie: t, ends: tokens{few: t.whole}}
	for node := int32(0); int(node) < len(t.bytes); node = t.after[node] {
		r.from = append(r.from, restsFrom{t.bytes[node], []int32{node}})
	}
	return r
}
