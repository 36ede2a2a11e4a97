package tokenizer

import (
	"encoding/binary"
	"math"
)

const (
	// shortPiece is the longest piece, in symbols, that is merged by looking for the
	// best pair again after every merge. That is quadratic, but words are short,
	// and up to about here it beats a heap.
	shortPiece = 48
	// longPiece is the longest piece, in symbols, that is merged with one heap of
	// pairs. Beyond it a queue for each rank is faster: see mergequeues.go.
	longPiece = 1 << 14
	// longestPiece bounds a piece so that positions fit 31 bits.
	longestPiece = math.MaxInt32
	// mergesPerCheck is how many merges of one piece go by between two looks at
	// whether anybody still wants them: some milliseconds.
	mergesPerCheck = 1 << 14
)

// bpe is the model: which symbols a text begins as and which pairs of them merge.
type bpe struct {
	symbols symbolTable
	merges  mergeTable
	// whole has every token by its text; nil unless the file says ignore_merges:
	// then a piece that is a token is that token, whatever the merges would make
	// of it.
	whole map[string]int32
	// cuts knows where in a piece no merge can reach across; nil: nowhere.
	cuts *cutTable
}

// workspace is the scratch memory of one encoding at a time, kept for the next.
type workspace struct {
	words   wordCache
	heap    heapMerger
	queues  queueMerger
	symbols []int32
}

// keptBytes is the most scratch memory, roughly, that is kept for the next text.
const keptBytes = 4 << 20

// tidy lets go of what only a huge text needs.
func (w *workspace) tidy() {
	if cap(w.symbols) > keptBytes/4 {
		w.symbols = nil
	}
	w.queues.release()
}

// appendPiece appends the tokens of one piece: of all adjacent pairs the one of
// lowest rank merges, the leftmost of several, until none is left. stop is asked
// now and then; its error ends the work. A piece is first cut
// where no merge can reach across, which changes nothing but the time it takes.
func (m *bpe) appendPiece(w *workspace, dst []int32, piece string, stop func() error) ([]int32, error) {
	if m.whole != nil {
		if id, ok := m.whole[piece]; ok {
			return append(dst, id), nil
		}
	}
	if m.cuts == nil {
		return m.appendUncut(w, dst, piece, stop)
	}
	checked := 0
	for i := 0; i < len(piece); {
		end := m.cuts.next(piece, i)
		var err error
		if dst, err = m.appendUncut(w, dst, piece[i:end], stop); err != nil {
			return nil, err
		}
		i = end
		if i-checked >= bytesPerCheck {
			if err := stop(); err != nil {
				return nil, err
			}
			checked = i
		}
	}
	return dst, nil
}

func (m *bpe) appendUncut(w *workspace, dst []int32, piece string, stop func() error) ([]int32, error) {
	if len(piece) > longestWord {
		return m.merge(w, dst, piece, stop)
	}
	key := keyOf(piece)
	word := w.words.slot(key)
	if word.key == key {
		return append(dst, word.ids[:word.n]...), nil
	}
	before := len(dst)
	dst, err := m.merge(w, dst, piece, stop)
	if err != nil {
		return nil, err
	}
	if ids := dst[before:]; len(ids) <= len(word.ids) {
		word.key, word.n = key, int32(copy(word.ids[:], ids))
	}
	return dst, nil
}

func (m *bpe) merge(w *workspace, dst []int32, piece string, stop func() error) ([]int32, error) {
	symbols, err := m.symbols.appendTo(w.symbols[:0], piece, stop)
	if err != nil {
		return nil, err
	}
	w.symbols = symbols
	switch n := len(w.symbols); {
	case n <= 1:
		return append(dst, w.symbols...), nil
	case n <= shortPiece:
		return m.appendShort(dst, w.symbols), nil
	case n <= longPiece:
		return w.heap.append(dst, w.symbols, &m.merges, stop)
	default:
		return w.queues.append(dst, w.symbols, &m.merges, stop)
	}
}

func (m *bpe) appendShort(dst, symbols []int32) []int32 {
	// ranks[i] and results[i] are of the pair (ids[i], ids[i+1]).
	var ids, results [shortPiece]int32
	var ranks [shortPiece]uint32
	n := copy(ids[:], symbols)
	for i := 1; i < n; i++ {
		ranks[i-1], results[i-1] = m.merges.find(ids[i-1], ids[i])
	}
	for n > 1 {
		best, at := noMerge, 0
		for i, rank := range ranks[:n-1] {
			if rank < best {
				best, at = rank, i
			}
		}
		if best == noMerge {
			break
		}
		ids[at] = results[at]
		n--
		copy(ids[at+1:n], ids[at+2:n+1])
		if at+1 < n {
			copy(ranks[at+1:n-1], ranks[at+2:n])
			copy(results[at+1:n-1], results[at+2:n])
			ranks[at], results[at] = m.merges.find(ids[at], ids[at+1])
		}
		if at > 0 {
			ranks[at-1], results[at-1] = m.merges.find(ids[at-1], ids[at])
		}
	}
	return append(dst, ids[:n]...)
}

const (
	// longestWord is the longest piece, in bytes, that the word cache remembers.
	longestWord = 23
	// cachedWords bounds the cache: a third of a megabyte, which a core's own cache
	// holds.
	cachedWords = 1 << 13
)

// wordCache remembers the tokens of short pieces; of two whose keys meet in one slot
// the later stands. What a piece becomes depends on nothing else, so that nothing in
// it grows old.
type wordCache struct {
	slots []cachedWord
}

type cachedWord struct {
	key wordKey
	ids [5]int32
	n   int32
}

// wordKey is the bytes of a piece, then zeros, then its length: never all zero.
type wordKey [3]uint64

func keyOf(piece string) wordKey {
	var b [24]byte
	copy(b[:longestWord], piece)
	b[longestWord] = byte(len(piece))
	return wordKey{binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])}
}

func (c *wordCache) slot(key wordKey) *cachedWord {
	if c.slots == nil {
		c.slots = make([]cachedWord, cachedWords)
	}
	h := key[0]*0x9E3779B97F4A7C15 ^ key[1]*0xC2B2AE3D27D4EB4F ^ key[2]*0x165667B19E3779F9
	return &c.slots[(h^h>>29)*0x9E3779B97F4A7C15>>(64-13)&(cachedWords-1)]
}
