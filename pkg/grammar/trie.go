package grammar

import (
	"bytes"
	"slices"
)

// trie holds texts of tokens, each with the ids that have it: nodes in the order of a walk that
// goes down first, so that what a prefix leads to stands together.
type trie struct {
	bytes []byte
	depth []uint16 // of the byte in the text, from 0
	after []int32  // the first node that does not begin with this one's prefix
	ids   []int32  // of all texts, in the order of nodes
	first []int32  // in ids: node i has ids[first[i]:first[i+1]]
	whole []int32  // ids of the empty text
}

// spelled is a text and who has it.
type spelled struct {
	text []byte
	id   int32
}

// newTrie sorts texts, and keeps them no longer than the call.
func newTrie(texts []spelled) *trie {
	slices.SortFunc(texts, func(a, b spelled) int { return bytes.Compare(a.text, b.text) })
	t := new(trie)
	var open []int32 // nodes of the text before
	var last []byte
	for _, s := range texts {
		if len(s.text) == 0 {
			t.whole = append(t.whole, s.id)
			continue
		}
		same := 0
		for same < len(last) && same < len(s.text) && last[same] == s.text[same] {
			same++
		}
		for _, node := range open[same:] {
			t.after[node] = int32(len(t.bytes))
		}
		open = open[:same]
		for i := same; i < len(s.text); i++ {
			open = append(open, int32(len(t.bytes)))
			t.bytes = append(t.bytes, s.text[i])
			t.depth = append(t.depth, uint16(i))
			t.after = append(t.after, 0)
			t.first = append(t.first, int32(len(t.ids)))
		}
		t.ids = append(t.ids, s.id)
		last = s.text
	}
	for _, node := range open {
		t.after[node] = int32(len(t.bytes))
	}
	t.first = append(t.first, int32(len(t.ids)))
	return t
}

// of are the ids whose text ends at a node.
func (t *trie) of(node int) []int32 { return t.ids[t.first[node]:t.first[node+1]] }

// below are the ids whose text ends at a node or goes on from it.
func (t *trie) below(node int) []int32 { return t.ids[t.first[node]:t.first[t.after[node]]] }
