package wire

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/checksum"
)

// CopyTo checks the chunk's checksum and copies its payload into the slices of
// blocks, which are those of Chunk.Runs. ErrCorrupt says that the checksum is
// wrong, ErrUndecodable that the coding does not take the payload, or that there is none
// since the slices are lent; the slices of blocks then hold anything. Any other error is
// that of the pages, or that the payload is no such slices. It is called at most once.
func (in *Inbound) CopyTo(pages engine.Pages, blocks []kvcache.BlockID, coding Coding) error {
	if in.Chunk.Loan != 0 {
		return fmt.Errorf("%w: its slices are lent", ErrUndecodable)
	}
	each := pages.Layout().SliceBytes
	if coding != nil {
		each = coding.EncodedBytes()
	}
	if in.Chunk.PayloadBytes != len(blocks)*each {
		return fmt.Errorf("a payload of %d bytes does not fit %d slices of %d", in.Chunk.PayloadBytes, len(blocks), each)
	}
	in.text = appendText(in.text[:0], &in.Chunk)
	from := source{in: in, sum: checksum.Update(0, in.text)}
	if coding == nil && len(blocks) > 0 && pages.View(int(in.Chunk.Layer), blocks[0]) != nil {
		return from.toViews(pages, blocks)
	}
	whole := in.pool.get(in.Chunk.PayloadBytes)
	defer in.pool.put(whole)
	payload := whole.all[:in.Chunk.PayloadBytes]
	from.copy(payload, checksum.Copy)
	switch {
	case from.sum != in.crc32c:
		return ErrCorrupt
	case coding == nil:
		return pages.Write(int(in.Chunk.Layer), blocks, payload)
	default:
		return in.decodeTo(pages, blocks, coding, payload)
	}
}

// source reads a payload from its beginning and sums it.
type source struct {
	in  *Inbound
	sum uint32
}

// copy fills dst with what comes next, one buffer after another.
func (s *source) copy(dst []byte, do func(dst, src []byte, sum uint32) uint32) {
	for len(dst) > 0 {
		next := s.in.payload[0].ReadOnlyData()[s.in.offset:]
		n := min(len(next), len(dst))
		s.sum = do(dst, next[:n], s.sum)
		dst = dst[n:]
		if s.in.offset += n; n == len(next) {
			s.in.payload, s.in.offset = s.in.payload[1:], 0
		}
	}
}

// toViews copies to pages in the host's memory, past its caches: by the time that
// the blocks are read the transfer has moved much more than those hold.
func (s *source) toViews(pages engine.Pages, blocks []kvcache.BlockID) error {
	for _, block := range blocks {
		view := pages.View(int(s.in.Chunk.Layer), block)
		if len(view) != pages.Layout().SliceBytes {
			return fmt.Errorf("%w: layer %d of block %d to write", errNoSlice, s.in.Chunk.Layer, block)
		}
		s.copy(view, checksum.Stream)
	}
	if s.sum != s.in.crc32c {
		return ErrCorrupt
	}
	return nil
}

// decodeTo writes slices that are in a coding.
func (in *Inbound) decodeTo(pages engine.Pages, blocks []kvcache.BlockID, coding Coding, payload []byte) error {
	layer, encoded := int(in.Chunk.Layer), coding.EncodedBytes()
	scratch := in.pool.get(pages.Layout().SliceBytes)
	defer in.pool.put(scratch)
	for i, block := range blocks {
		slice := pages.View(layer, block)
		inHost := slice != nil
		if !inHost {
			slice = scratch.all[:pages.Layout().SliceBytes]
		}
		if err := coding.Decode(slice, payload[i*encoded:(i+1)*encoded]); err != nil {
			return fmt.Errorf("%w: %w", ErrUndecodable, err)
		}
		if inHost {
			continue
		}
		if err := pages.Write(layer, blocks[i:i+1], slice); err != nil {
			return err
		}
	}
	return nil
}
