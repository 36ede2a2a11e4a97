package scheduler_test

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"slices"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// vocabulary of the fake engine: small, so that stop tokens and equal prefixes
// happen.
const vocabulary = 5

// pages is fake KV memory: one number for each position of each block.
type pages struct {
	blockTokens int
	kv          [][]uint64
}

func newPages(blocks, blockTokens int) *pages {
	p := &pages{blockTokens: blockTokens, kv: make([][]uint64, blocks)}
	for i := range p.kv {
		p.kv[i] = make([]uint64, blockTokens)
	}
	return p
}

func (p *pages) at(table []kvcache.BlockID, position int) *uint64 {
	return &p.kv[table[position/p.blockTokens]][position%p.blockTokens]
}

// read is the KV of the first n positions.
func (p *pages) read(table []kvcache.BlockID, n int) []uint64 {
	kv := make([]uint64, n)
	for i := range kv {
		kv[i] = *p.at(table, i)
	}
	return kv
}

// run computes one sequence and draws after its last token, or after each of its drafts as
// long as they are what was drawn: the KV of each token depends on the KV of all
// tokens before it, as the pages have it, and so does the token drawn. A wrong
// block table, a wrong prefix hit or a late write changes the output.
func (p *pages) run(work engine.Sequence) (token, accepted int32) {
	kv := p.read(work.Blocks, work.Start)
	for i, token := range work.Tokens {
		kv = append(kv, attend(kv, token))
		*p.at(work.Blocks, work.Start+i) = kv[len(kv)-1]
	}
	if work.Sample == nil {
		return -1, 0
	}
	drafts := work.Tokens[len(work.Tokens)-work.Sample.Drafts:]
	known := len(kv) - len(drafts)
	for i := range len(drafts) + 1 {
		token = draw(kv[:known+i], work.Sample.Params.Seed, int(work.Sample.Offset)+i)
		if i == len(drafts) || token != drafts[i] {
			return token, int32(i)
		}
	}
	return token, accepted
}

// draft drafts as an engine's own draft model does: as many tokens as it may, or if it is not eager
// perhaps fewer, most of them right. What it does depends on salt.
func (p *pages) draft(work engine.Sequence, salt uint64, eager bool) (drafts []int32) {
	if work.Sample == nil || work.Sample.DraftRequest.Most == 0 {
		return nil
	}
	kv := p.read(work.Blocks, work.Start)
	for _, token := range work.Tokens {
		kv = append(kv, attend(kv, token))
	}
	chance := digest(salt, kv[len(kv)-1])
	n := uint64(work.Sample.DraftRequest.Most)
	if !eager {
		n = chance % (n + 1)
	}
	for i := range n {
		token := draw(kv, work.Sample.Params.Seed, int(work.Sample.Offset+i))
		if token < 0 || digest(chance, i)%4 == 0 {
			token = (token + 1) % vocabulary
		}
		drafts, kv = append(drafts, token), append(kv, attend(kv, token))
	}
	return drafts
}

// spoil writes garbage where the sequence would have written.
func (p *pages) spoil(work engine.Sequence, garbage uint64) {
	for i := range work.Tokens {
		*p.at(work.Blocks, work.Start+i) = garbage + uint64(i)
	}
}

func digest(numbers ...uint64) uint64 {
	h := fnv.New64a()
	var b [8]byte
	for _, n := range numbers {
		binary.LittleEndian.PutUint64(b[:], n)
		h.Write(b[:])
	}
	return h.Sum64()
}

// notFinite stands for a NaN: so is what is made from it.
const notFinite = ^uint64(0)

func attend(kv []uint64, token int32) uint64 {
	if slices.Contains(kv, notFinite) {
		return notFinite
	}
	return digest(digest(kv...), uint64(token))
}

func draw(kv []uint64, seed uint64, offset int) int32 {
	if slices.Contains(kv, notFinite) {
		return sampler.None
	}
	return int32(digest(digest(kv...), seed, uint64(offset)) % vocabulary)
}

// score is how likely a token is after others, of whose KV it is a function.
func score(kv []uint64, next int32) sampler.Logprobs {
	if slices.Contains(kv, notFinite) {
		return sampler.Logprobs{Drawn: float32(math.NaN())}
	}
	return sampler.Logprobs{Drawn: -float32(digest(digest(kv...), uint64(next)) % 1000)}
}

// sameUnlessSpoilt says whether kv is what it should be, but for what somebody spoilt.
func sameUnlessSpoilt(kv, want []uint64) bool {
	return slices.EqualFunc(kv, want, func(a, b uint64) bool { return a == b || a == notFinite })
}

// alone is the KV of tokens and what they go on with, computed without any
// scheduler: at most n tokens, up to the first one in stop.
func alone(tokens []int32, seed uint64, generated, n int, stop []int32) (kv []uint64, output []int32) {
	for _, token := range tokens {
		kv = append(kv, attend(kv, token))
	}
	all := slices.Clone(kv)
	for i := range n {
		token := draw(all, seed, generated+i)
		output = append(output, token)
		if slices.Contains(stop, token) {
			break
		}
		all = append(all, attend(all, token))
	}
	return kv, output
}
