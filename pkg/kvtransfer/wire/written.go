package wire

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/checksum"
)

// encodeWritten writes a chunk's slices into the receiver's pages, and encodes what says so
// into a pooled buffer. The checksum is that of the same slices in a payload.
func (out *Outbound) encodeWritten(p *pool) (*buffer, error) {
	c := &out.Chunk
	size := len(out.Blocks) * out.Pages.Layout().SliceBytes
	most := maxFixedBytes + maxRunBytes*len(c.Runs) + sumBytes
	b := p.get(most + textBytes(len(c.Runs)))
	sum, err := out.writeSlices(checksum.Update(0, appendText(b.all[most:most:len(b.all)], c)))
	if err != nil {
		p.put(b)
		return nil, err
	}
	rest := 1 + protowire.SizeVarint(uint64(size)) + sumBytes
	m := appendHeader(b.all[:0:most], *c, rest)
	m = appendUint32(m, fieldWritten, uint32(size))
	m = protowire.AppendTag(m, fieldCRC32C, protowire.Fixed32Type)
	b.used = protowire.AppendFixed32(m, sum)
	return b, nil
}

// writeSlices copies slices into those of Into, but for those that are there, and adds all to a
// checksum in the same pass.
func (out *Outbound) writeSlices(sum uint32) (uint32, error) {
	layer, slice := int(out.Chunk.Layer), out.Pages.Layout().SliceBytes
	if len(out.Targets) != len(out.Blocks) {
		return 0, fmt.Errorf("%d slices to write into %d", len(out.Blocks), len(out.Targets))
	}
	for i, block := range out.Blocks {
		to := out.Into.View(layer, out.Targets[i])
		if len(to) != slice {
			return 0, fmt.Errorf("%w: layer %d of the receiver's page %d to write", errNoSlice, layer, out.Targets[i])
		}
		if len(out.Stored) > 0 && out.Stored[i] {
			sum = checksum.Update(sum, to)
			continue
		}
		from := out.Pages.View(layer, block)
		switch {
		case len(from) == slice:
			sum = checksum.Copy(to, from, sum)
		case from != nil:
			return 0, fmt.Errorf("%w: layer %d of block %d to read", errNoSlice, layer, block)
		default: // of a device, which copies by itself
			if err := out.Pages.Read(layer, out.Blocks[i:i+1], to); err != nil {
				return 0, err
			}
			sum = checksum.Update(sum, to)
		}
	}
	return sum, nil
}

// Verify verifies the checksum of a chunk whose slices the sender wrote into those of blocks,
// which are the blocks of Chunk.Runs. It only reads. Errors: ErrCorrupt for a wrong checksum;
// ErrUndecodable if the chunk has slices elsewhere; otherwise an error of the pages.
func (in *Inbound) Verify(pages engine.Pages, blocks []kvcache.BlockID) error {
	if !in.Chunk.Written {
		return fmt.Errorf("%w: nothing was written into the pages", ErrUndecodable)
	}
	slice := pages.Layout().SliceBytes
	if in.Chunk.PayloadBytes != len(blocks)*slice {
		return fmt.Errorf("%d bytes written do not fill %d slices of %d", in.Chunk.PayloadBytes, len(blocks), slice)
	}
	in.text = appendText(in.text[:0], &in.Chunk)
	sum := checksum.Update(0, in.text)
	for _, block := range blocks {
		view := pages.View(int(in.Chunk.Layer), block)
		if len(view) != slice {
			return fmt.Errorf("%w: layer %d of block %d to verify", errNoSlice, in.Chunk.Layer, block)
		}
		sum = checksum.Update(sum, view)
	}
	if sum != in.crc32c {
		return ErrCorrupt
	}
	return nil
}
