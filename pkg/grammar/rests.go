package grammar

// rests is what is left of tokens behind texts that they begin with.
type rests struct {
	trie *trie
	// ends are the tokens of which nothing is left.
	ends tokens
	// all: it is all that is behind the root of the trie. Else it is that from some nodes on.
	all  bool
	from []restsFrom
	// classes are nodes of tries of classes: what is left begins behind the texts that are theirs.
	classes []classRests
}

// restsFrom is the nodes of a trie from which rests go on, all with the same byte.
type restsFrom struct {
	b     byte
	nodes []int32
}

// classRests is the nodes of a trie of classes, by the texts of classes that lead to them.
type classRests struct {
	byteClass *[256]byte
	texts     []string
}

// bytes is what rests take, about.
func (r *rests) bytes() int {
	n := restsBytes + r.ends.bytes()
	for _, from := range r.from {
		n += restsBytes + 4*len(from.nodes)
	}
	for _, c := range r.classes {
		n += restsBytes
		for _, text := range c.texts {
			n += 16 + len(text)
		}
	}
	return n
}

// restsOf is all texts of a trie; nil if it has none.
func restsOf(t *trie) *rests {
	if len(t.ids) == 0 {
		return nil
	}
	return &rests{trie: t, ends: tokens{few: t.of(0)}, all: true}
}
