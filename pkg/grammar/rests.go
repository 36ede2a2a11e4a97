package grammar

// rests is what is left of tokens behind texts that they begin with.
type rests struct {
	trie *trie
	// ends are the tokens of which nothing is left.
	ends tokens
	// all: it is all that is behind the root of the trie. Else it is that from some nodes on.
	all  bool
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
	if len(t.ids) == 0 {
		return nil
	}
	return &rests{trie: t, ends: tokens{few: t.of(0)}, all: true}
}
