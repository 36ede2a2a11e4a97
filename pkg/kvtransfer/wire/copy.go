package wire

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/checksum"
)

// CopyTo verifies the chunk's checksum and copies its payload into the slices of blocks,
// which are the blocks of Chunk.Runs. Call it at most once.
//
// Errors: ErrCorrupt for a wrong checksum; ErrUndecodable if the coding rejects the
// payload, or if there is none; otherwise an error of the pages, or of a payload of
// the wrong size. After an error the slices hold arbitrary bytes.
func (in *Inbound) CopyTo(pages engine.Pages, blocks []kvcache.BlockID, coding Coding) error {
	if in.Chunk.Loan != 0 || in.Chunk.Written {
		return fmt.Errorf("%w: it has no payload", ErrUndecodable)
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
	var whole *buffer
	if coding == nil {
		whole = in.pool.getFor(pages, in.Chunk.PayloadBytes)
	} else {
		whole = in.pool.get(in.Chunk.PayloadBytes)
	}
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

// source reads a payload sequentially and computes its checksum.
type source struct {
	in  *Inbound
	sum uint32
}

// copy fills dst with the next bytes.
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

// toViews copies to pages in host memory with non-temporal stores: before the blocks are
// read, the transfer moves much more than the caches hold.
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

// decodeTo writes slices that are encoded in a coding.
func (in *Inbound) decodeTo(pages engine.Pages, blocks []kvcache.BlockID, coding Coding, payload []byte) error {
	layer, encoded := int(in.Chunk.Layer), coding.EncodedBytes()
	scratch := in.pool.getFor(pages, pages.Layout().SliceBytes)
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
