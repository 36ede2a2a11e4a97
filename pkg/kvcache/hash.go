package kvcache

import (
	"crypto/sha256"
	"encoding/binary"
)

// Hash names the content of a full block together with everything before it: it
// is chained from block to block, from a root that stands for model, arithmetic
// class and salt. It is a hint. A Pool compares the tokens themselves before it
// shares a block.
type Hash uint64

// HashValues are hashes as messages carry them.
func HashValues(hashes []Hash) []uint64 {
	values := make([]uint64, len(hashes))
	for i, h := range hashes {
		values[i] = uint64(h)
	}
	return values
}

// RootHash is the parent of the first block of a prompt. Blocks are shared only
// under one model, one arithmetic class and one salt.
func RootHash(modelDigest, arithmeticClass, salt string) Hash {
	var stack [256]byte // holds a digest, a class and most salts without allocating
	text := append(stack[:0], "tandem block root/1"...)
	for _, field := range []string{modelDigest, arithmeticClass, salt} {
		// The length in front keeps "ab","c" and "a","bc" apart.
		text = binary.LittleEndian.AppendUint64(text, uint64(len(field)))
		text = append(text, field...)
	}
	return truncate(sha256.Sum256(text))
}

// Next is the hash of the block that holds tokens and follows the block, or the
// root, named by parent: the first 8 bytes, little-endian, of the SHA-256 of
// parent and of the tokens, 8 and 4 bytes each, little-endian. Tokens are those
// of one full block.
func (parent Hash) Next(tokens []int32) Hash {
	var stack [8 + 4*64]byte // holds blocks of up to 64 tokens without allocating
	text := binary.LittleEndian.AppendUint64(stack[:0], uint64(parent))
	for _, token := range tokens {
		text = binary.LittleEndian.AppendUint32(text, uint32(token))
	}
	return truncate(sha256.Sum256(text))
}

// PromptHashes is the hash of each full block of a prompt, as BlockHashes from its RootHash.
func PromptHashes(modelDigest, arithmeticClass, salt string, tokens []int32, blockTokens int) []Hash {
	return BlockHashes(RootHash(modelDigest, arithmeticClass, salt), tokens, blockTokens)
}

// BlockHashes is the hash of each full block of tokens, in order. It is empty if
// blockTokens is not positive.
func BlockHashes(root Hash, tokens []int32, blockTokens int) []Hash {
	return blockHashes(root, tokens, blockTokens, Hash.Next)
}

func blockHashes(root Hash, tokens []int32, blockTokens int, next func(Hash, []int32) Hash) []Hash {
	if blockTokens <= 0 || len(tokens) < blockTokens {
		return nil
	}
	hashes := make([]Hash, 0, len(tokens)/blockTokens)
	for ; len(tokens) >= blockTokens; tokens = tokens[blockTokens:] {
		root = next(root, tokens[:blockTokens])
		hashes = append(hashes, root)
	}
	return hashes
}

func truncate(sum [sha256.Size]byte) Hash {
	return Hash(binary.LittleEndian.Uint64(sum[:8]))
}
