package simulate

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/loadtest/workload"
)

// said is how a conversation begins: its text so far, and its tokens with the last answer's.
type said struct {
	text   string
	tokens []int32
}

// prompt is the tokens of a prompt. What was said before it keeps its tokens.
func (l *load) prompt(p workload.Prompt, before said) (tokens []int32, err error) {
	if p.Text == "" {
		tokens = make([]int32, len(p.TokenIDs))
		for i, id := range p.TokenIDs {
			tokens[i] = int32(id)
		}
		return tokens, nil
	}
	text := strings.TrimPrefix(p.Text, before.text)
	if l.Tokenize != nil {
		tokens, err = l.Tokenize(text, before.text == "")
	} else {
		tokens = hashed(text, l.cluster.spec.VocabSize)
	}
	return slices.Concat(before.tokens, tokens), err
}

// hashed is a token for every four bytes of a text, by their hash: equal beginnings have equal
// tokens.
func hashed(text string, vocabulary int) (tokens []int32) {
	for four := range slices.Chunk([]byte(text), 4) {
		var padded [4]byte
		copy(padded[:], four)
		mixed := binary.LittleEndian.Uint32(padded[:]) * 0x9e3779b1
		tokens = append(tokens, int32(uint64(mixed)*uint64(vocabulary)>>32))
	}
	return tokens
}
