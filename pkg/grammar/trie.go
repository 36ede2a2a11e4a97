package grammar

import (
	"bytes"
	"slices"
)

// trie holds texts of tokens, each with the ids that have it. Nodes stand in the order of their
// depth, and those of a depth in the order of their texts: so the nodes behind a node stand together,
// and so do those behind them. A mask is made between steps of an engine that leave nothing of a
// vocabulary in the processor's cache, so what it takes is the lines of memory that it looks at.
type trie struct {
	bytes []byte     // the last of each node's text; node 0 is the empty text, the root
	nodes []trieNode // and one more, where the last ones end
	ids   []int32    // of all texts, in the order of nodes
}

// trieNode is where the nodes behind it begin, and its ids in trie.ids. They end where those of
// the next node begin.
type trieNode struct{ first, ids int32 }

// spelled is a text and who has it.
type spelled struct {
	text []byte
	id   int32
}

// newTrie sorts texts, and keeps them no longer than the call.
func newTrie(texts []spelled) *trie {
	slices.SortFunc(texts, func(a, b spelled) int { return bytes.Compare(a.text, b.text) })
	t := &trie{bytes: []byte{0}}
	type node struct{ from, to, depth int } // the texts that begin with its own
	for nodes := []node{{0, len(texts), 0}}; len(t.nodes) < len(nodes); {
		n := nodes[len(t.nodes)]
		t.nodes = append(t.nodes, trieNode{int32(len(nodes)), int32(len(t.ids))})
		for ; n.from < n.to && len(texts[n.from].text) == n.depth; n.from++ {
			t.ids = append(t.ids, texts[n.from].id)
		}
		for n.from < n.to {
			b, from := texts[n.from].text[n.depth], n.from
			for n.from < n.to && texts[n.from].text[n.depth] == b {
				n.from++
			}
			t.bytes = append(t.bytes, b)
			nodes = append(nodes, node{from, n.from, n.depth + 1})
		}
	}
	t.nodes = append(t.nodes, trieNode{int32(len(t.nodes)), int32(len(t.ids))})
	return t
}

// of are the ids whose text is a node's.
func (t *trie) of(node int32) []int32 { return t.ids[t.nodes[node].ids:t.nodes[node+1].ids] }

// behind are the nodes one byte behind a node: from first to before end.
func (t *trie) behind(node int32) (first, end int32) {
	return t.nodes[node].first, t.nodes[node+1].first
}

// below appends the ids whose text is a node's or goes on from it.
func (t *trie) below(node int32, ids []int32) []int32 {
	for first, end := node, node+1; first < end; first, end = t.nodes[first].first, t.nodes[end].first {
		ids = append(ids, t.ids[t.nodes[first].ids:t.nodes[end].ids]...)
	}
	return ids
}

// find is the node of a text, if there is one.
func (t *trie) find(text string) (node int32, is bool) {
	for i := range len(text) {
		first, end := t.behind(node)
		at := bytes.IndexByte(t.bytes[first:end], text[i])
		if at < 0 {
			return 0, false
		}
		node = first + int32(at)
	}
	return node, true
}
