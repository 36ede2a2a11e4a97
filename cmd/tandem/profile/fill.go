package profile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

const (
	// fillBytes is about what is written at once.
	fillBytes = 16 << 20
	// fillers write to pages that are not host memory: one does not fill the bus.
	fillers = 4
)

// fill gives every block that is read numbers like those of real keys and values:
// memory that was never written is read faster, and other numbers may not be.
func fill(ctx context.Context, e engine.Engine, points []*Point) error {
	blocks := 0
	for _, p := range points {
		for _, s := range p.batch.Sequences {
			blocks = max(blocks, int(s.Blocks[len(s.Blocks)-1])+1)
		}
	}
	layout := e.Capacity().Layout
	each := min(max(fillBytes/layout.SliceBytes, 1), blocks)
	source := bytes.Repeat(numbers(layout), each)
	fillLayer := func(layer int) error {
		for first := 0; first < blocks; first += each {
			n := min(each, blocks-first)
			if err := errors.Join(ctx.Err(), e.Pages().Write(layer, kvcache.BlockRange(first, n), source[:n*layout.SliceBytes])); err != nil {
				return fmt.Errorf("fill the KV pages: %w", err)
			}
		}
		return nil
	}
	failures := make([]error, 1)
	if e.Pages().View(0, 0) == nil {
		failures = make([]error, fillers)
	}
	var wait sync.WaitGroup
	for i := range failures {
		wait.Go(func() {
			for layer := i; layer < layout.Layers && failures[i] == nil; layer += len(failures) {
				failures[i] = fillLayer(layer)
			}
		})
	}
	wait.Wait()
	return errors.Join(failures...)
}

// numbers is a slice of a page.
func numbers(layout kvcache.Layout) []byte {
	slice := make([]byte, layout.SliceBytes)
	chance := rand.New(rand.NewPCG(1, 2))
	rows := 2 * layout.KVHeads * layout.BlockTokens // a token of a head each, of keys and of values
	switch layout.ElementType {
	case "int8": // codes, then scales
		codes := rows * layout.HeadSize
		for i := range slice[:codes] {
			slice[i] = byte(chance.IntN(255) - 127)
		}
		for i := codes; i+1 < len(slice); i += 2 { // bf16 from 2⁻⁷ to 2⁻⁶: 127 codes make the same
			slice[i], slice[i+1] = byte(chance.IntN(128)), 0x3c
		}
	case "fp8": // e4m3 of either sign, between 2⁻³ and 2, then scales of 1
		codes := len(slice) - rows
		for i := range slice[:codes] {
			slice[i] = byte(0x20+chance.IntN(0x20)) | byte(chance.IntN(2)<<7)
		}
		for i := range slice[codes:] {
			slice[codes+i] = 127
		}
	default:
		for i := 0; i+1 < len(slice); i += 2 { // bf16 of either sign, between 2⁻⁷ and 2
			slice[i], slice[i+1] = byte(chance.Uint32()), byte(0x3c+chance.IntN(4))|byte(chance.IntN(2)<<7)
		}
	}
	return slice
}
