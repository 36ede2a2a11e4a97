package kernels

import (
	"fmt"
	"unsafe"
)

// PackingVersion is the version of the bytes that PackLayer and PackEnds make of
// given matrices in a given Shape. What is packed is kept on disk: whoever changes the
// bytes of a type raises it. A new type of weights need not.
const PackingVersion = 1

// Parts are the packed weights: norms, biases, panels and the embedding, in an order
// that follows from the shape. They are all that packing writes but for the windows
// (SetWindow), so whoever fills fresh weights with the parts of others has packed
// them. Their bytes are those of this machine's order, and must not be used after
// Free.
func (w *Weights) Parts() [][]byte { return w.parts }

// SetWindow says how many tokens a query of layer i sees, itself included; 0 for all.
// PackLayer does it too.
func (w *Weights) SetWindow(i, tokens int) error {
	if i < 0 || i >= w.count {
		return fmt.Errorf("layer %d of %d", i, w.count)
	}
	unsafe.Slice(w.layers, w.count)[i].window = windowOf(tokens)
	return nil
}
