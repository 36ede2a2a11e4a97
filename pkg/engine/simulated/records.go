package simulated

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// recordBytes is the size of what one token leaves in one slice.
const recordBytes = 8

// notFinite is the record that stands for a NaN.
const notFinite = ^uint64(0)

// NotFinite implements engine.Checking. With one record a block it is all of its tokens or
// none.
func (e *Engine) NotFinite(slice []byte, n int) int {
	if e.cfg.Brief {
		if binary.LittleEndian.Uint64(slice) == notFinite {
			return 0
		}
		return n
	}
	for i := range n {
		if binary.LittleEndian.Uint64(slice[i*recordBytes:]) == notFinite {
			return i
		}
	}
	return n
}

// write leaves the records of tokens of one sequence, from a position on, in one layer.
func (e *Engine) write(layer int, table []kvcache.BlockID, start int, tokens []int32) {
	state := uint64(layer) + 1
	if start > 0 {
		state = binary.LittleEndian.Uint64(e.record(layer, table, start-1))
	}
	spoilt := state == notFinite
	end := start + len(tokens)
	for i, token := range tokens {
		if state = mix(state ^ uint64(uint32(token))<<20); spoilt {
			state = notFinite
		}
		position := start + i
		if !e.cfg.Brief || position+1 == end || (position+1)%e.cfg.BlockTokens == 0 {
			binary.LittleEndian.PutUint64(e.record(layer, table, position), state)
		}
	}
}

// record is where what a token leaves is.
func (e *Engine) record(layer int, table []kvcache.BlockID, position int) []byte {
	slice := e.pages.View(layer, table[position/e.cfg.BlockTokens])
	if e.cfg.Brief {
		return slice
	}
	return slice[position%e.cfg.BlockTokens*recordBytes:]
}

// draw makes a token of the last record of every block of the context, so many tokens, in
// every layer, or of the last one of all. Tokens that begin or end a text are left out, so that
// texts have the length that was asked for. sampler.None if there is a record that is none.
func (e *Engine) draw(s *engine.Sequence, length int, offset uint64, h sampler.History) int32 {
	var all uint64
	spoilt := false
	take := func(layer, position int) {
		record := binary.LittleEndian.Uint64(e.record(layer, s.Blocks, position))
		all = mix(all ^ record)
		spoilt = spoilt || record == notFinite
	}
	for layer := e.pages.first; layer < e.cfg.Spec.Layers; layer++ {
		if !e.cfg.Brief {
			for end := e.cfg.BlockTokens; end < length; end += e.cfg.BlockTokens {
				take(layer, end-1)
			}
		}
		take(layer, length-1)
	}
	if spoilt {
		return sampler.None
	}
	params := &s.Sample.Params
	if params.Temperature > 0 && params.TopK != 1 {
		random := sampler.Philox(
			[4]uint32{uint32(offset), uint32(offset >> 32)},
			[2]uint32{uint32(params.Seed), uint32(params.Seed >> 32)})
		all = mix(all ^ uint64(random[0])<<32 ^ uint64(random[1]))
	}
	if s.Sample.Constraint != nil {
		return s.Sample.NoneBecause(e.drawAllowed(s.Sample.Constraint.Allowed(h.Output()), params, offset, all))
	}
	vocabulary := uint64(e.cfg.Spec.VocabSize)
	token := int32(all % vocabulary)
	if e.texts != nil {
		token = e.texts.draw(s.Tokens[length-1-s.Start], all)
	}
	early := offset < uint64(params.MinTokens)
	leftOut := func(token int32) bool {
		return slices.Contains(e.cfg.Spec.EOS, token) || token == e.cfg.Spec.BOS || early && slices.Contains(params.Ends, token)
	}
	for tried := uint64(1); leftOut(token); tried++ {
		token = int32((uint64(token) + 1) % vocabulary)
		early = early && tried < vocabulary // there is no other
	}
	return token
}

// drawAllowed makes a token of those that are allowed. One that ends a text, or would too early,
// is left out as long as there are others.
func (e *Engine) drawAllowed(allowed []uint64, params *sampler.Params, offset, all uint64) int32 {
	early := offset < uint64(params.MinTokens)
	ends := func(token int32) bool {
		return slices.Contains(e.cfg.Spec.EOS, token) || early && slices.Contains(params.Ends, token)
	}
	var texts, rest []int32
	for word, left := range allowed {
		for ; left != 0; left &= left - 1 {
			if token := int32(word<<6 + bits.TrailingZeros64(left)); ends(token) {
				rest = append(rest, token)
			} else {
				texts = append(texts, token)
			}
		}
	}
	if len(texts) == 0 {
		texts = rest
	}
	if len(texts) == 0 {
		return sampler.NoneAllowed
	}
	return texts[all%uint64(len(texts))]
}

// mix is the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA '14).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
