package transfer

import (
	"bytes"
	"math/rand/v2"

	"github.com/tandem-serving/tandem/pkg/engine/hostpages"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// newPages are blocks of which every byte is chance, drawn from seed: so every page was
// touched. Callers see to it that slices are not read while they are written.
func newPages(layout kvcache.Layout, blocks int, seed byte) (*hostpages.Pages, error) {
	p, err := hostpages.Map(layout, blocks)
	if err != nil {
		return nil, err
	}
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(p.Bytes()) // it never fails
	return p, nil
}

// first is the memory of the first blocks.
func first(p *hostpages.Pages, blocks int) []byte {
	return p.Bytes()[:blocks*p.Layout().PageBytes()]
}

// same says whether the first blocks of two pools hold the same.
func same(a, b *hostpages.Pages, blocks int) bool {
	return bytes.Equal(first(a, blocks), first(b, blocks))
}

// blockRange is n neighbouring blocks.
func blockRange(first, n int) []kvcache.BlockID {
	blocks := make([]kvcache.BlockID, n)
	for i := range blocks {
		blocks[i] = kvcache.BlockID(first + i)
	}
	return blocks
}
