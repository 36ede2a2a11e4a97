package kvcache

import "fmt"

// PageMap says where slices are in one memory: block after block, the slices of all
// layers of a block side by side. It is a value and may be used concurrently.
type PageMap struct {
	// Layout of the blocks.
	Layout Layout
	// Blocks is how many there are, 0 to Blocks-1.
	Blocks int
}

// Bytes is the size of the memory.
func (m PageMap) Bytes() int { return m.Blocks * m.Layout.PageBytes() }

// Check says what is wrong with a slice's layer and block, if they name none.
func (m PageMap) Check(layer int, block BlockID) error {
	if layer < 0 || layer >= m.Layout.Layers {
		return fmt.Errorf("layer %d is not one of %d", layer, m.Layout.Layers)
	}
	if block < 0 || int(block) >= m.Blocks {
		return fmt.Errorf("block %d is not one of %d", block, m.Blocks)
	}
	return nil
}

// CheckAll says what is wrong with moving a layer's slices of blocks from or to a buffer
// of so many bytes.
func (m PageMap) CheckAll(layer int, blocks []BlockID, bytes int) error {
	if want := len(blocks) * m.Layout.SliceBytes; bytes != want {
		return fmt.Errorf("got %d bytes for %d slices of %d, want %d", bytes, len(blocks), m.Layout.SliceBytes, want)
	}
	for _, b := range blocks {
		if err := m.Check(layer, b); err != nil {
			return err
		}
	}
	return nil
}

// Slice is one slice of the memory, which has Bytes bytes. Check has to allow it.
func (m PageMap) Slice(memory []byte, layer int, block BlockID) []byte {
	at := int(block)*m.Layout.PageBytes() + layer*m.Layout.SliceBytes
	end := at + m.Layout.SliceBytes
	return memory[at:end:end]
}
