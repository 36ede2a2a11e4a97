package blockstore

import "github.com/tandem-serving/tandem/pkg/kvcache"

// WithHashes is p with other hashes.
func (p Prefix) WithHashes(hashes ...kvcache.Hash) Prefix {
	p.hashes = hashes
	return p
}
