package engine

import (
	"context"
	"fmt"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// NotFiniteError says that the logits of a sequence were not finite, so that no token
// could be drawn from them: see Output.Tokens.
type NotFiniteError struct {
	// Layer is the first one in whose keys or values there is an infinity or a NaN, and
	// Position where the first of them is in the sequence. Both are -1 if none was found: then
	// what came after them is to blame, unless Uninspected.
	Layer, Position int
	// Uninspected says that nobody looked through them to the end.
	Uninspected bool
}

// Error says where it began.
func (e *NotFiniteError) Error() string {
	switch {
	case e.Uninspected:
		return "the logits are not finite; the keys and values were not looked through, since this worker ends"
	case e.Layer < 0:
		return "the logits are not finite, but no such keys or values were found: the weights or the arithmetic are wrong"
	}
	return fmt.Sprintf("the logits are not finite, nor are the keys and values of layer %d, from position %d on", e.Layer, e.Position)
}

// FindNotFinite looks through the keys and values of a sequence, of which so many tokens
// are in blocks, for the cause of logits that are not finite. It takes as long as to read
// them all, layer by layer from the first one on, until something is found, or until ctx ends
// or the pages cannot be read.
func FindNotFinite(ctx context.Context, e Engine, blocks []kvcache.BlockID, tokens int) *NotFiniteError {
	none := &NotFiniteError{Layer: -1, Position: -1}
	checking, is := As[Checking](e)
	if !is {
		return none
	}
	cut := &NotFiniteError{Layer: -1, Position: -1, Uninspected: true}
	if ctx.Err() != nil {
		return cut // pages may be closed
	}
	pages := e.Pages()
	layout := pages.Layout()
	slice := make([]byte, layout.SliceBytes)
	for layer := range layout.Layers {
		for first := 0; first < tokens; first += layout.BlockTokens {
			if ctx.Err() != nil || pages.Read(layer, blocks[first/layout.BlockTokens:][:1], slice) != nil {
				return cut // in the second case the engine is closed, or its device is lost
			}
			n := min(layout.BlockTokens, tokens-first)
			if found := checking.NotFinite(slice, n); found < n {
				return &NotFiniteError{Layer: layer, Position: first + found}
			}
		}
	}
	return none
}
