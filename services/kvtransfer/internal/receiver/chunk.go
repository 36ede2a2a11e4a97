package receiver

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/wire"
)

// check turns a chunk into a write, or says what is wrong with it: detail is
// empty if and only if nothing is. A number of the sender is used only after it
// was found to lie in the reservation.
func (c *Core) check(t *transfer, m *wire.Chunk) (w Write, reason kvtransferv1.FailReason, detail string) {
	const (
		protocol   = kvtransferv1.FailReason_FAIL_REASON_PROTOCOL
		incomplete = kvtransferv1.FailReason_FAIL_REASON_INCOMPLETE
	)
	size := m.PayloadBytes
	switch {
	case m.Sequence != t.sequence:
		return w, incomplete, fmt.Sprintf("chunk %d came where %d was due", m.Sequence, t.sequence)
	case uint64(m.Layer) >= uint64(c.cfg.Layers):
		return w, protocol, fmt.Sprintf("chunk %d is of layer %d, of %d", t.sequence, m.Layer, c.cfg.Layers)
	case size == 0 || size%c.cfg.SliceBytes != 0:
		return w, protocol, fmt.Sprintf("chunk %d has %d bytes, which is no multiple of a slice of %d", t.sequence, size, c.cfg.SliceBytes)
	case size > c.cfg.MaxChunkBytes:
		return w, protocol, fmt.Sprintf("chunk %d has %d bytes, of at most %d", t.sequence, size, c.cfg.MaxChunkBytes)
	}
	layer := int(m.Layer)
	slices := size / c.cfg.SliceBytes
	blocks := make([]kvcache.BlockID, 0, slices)
	past := uint64(0)
	for _, run := range m.Runs {
		first, count := uint64(run.First), uint64(run.Blocks)
		if count == 0 || first < past {
			return w, protocol, fmt.Sprintf("chunk %d has runs that do not ascend", t.sequence)
		}
		past = first + count
		if first < uint64(t.held) || past > uint64(len(t.blocks)) {
			return w, incomplete, fmt.Sprintf("chunk %d has blocks %d to %d, where %d to %d are to be sent", t.sequence, first, past, t.held, len(t.blocks))
		}
		if count > uint64(slices-len(blocks)) {
			return w, protocol, fmt.Sprintf("chunk %d names more slices than it carries", t.sequence)
		}
		if !t.seen.Add(layer, int(first)-t.held, int(count)) {
			return w, incomplete, fmt.Sprintf("chunk %d brings slices of layer %d, blocks %d to %d, a second time", t.sequence, layer, first, past)
		}
		blocks = append(blocks, t.blocks[first:past]...)
	}
	if len(blocks) != slices {
		return w, protocol, fmt.Sprintf("chunk %d names %d slices and carries %d", t.sequence, len(blocks), slices)
	}
	return Write{
		Stream: t.stream.id, ID: t.id, Layer: layer, Blocks: blocks, Bytes: size,
	}, 0, ""
}

// written books the end of a copy and lets its transfer go on.
func (c *Core) written(ev Written) {
	if s := c.streams[ev.Stream]; s != nil {
		c.landed(s, ev.Bytes)
	}
	t := c.transfers[ev.ID]
	if t == nil || t.writing == 0 {
		return
	}
	t.writing--
	switch ev.Outcome {
	case Landed:
		t.bytes += uint64(ev.Bytes)
		c.totals.PayloadBytes += uint64(ev.Bytes)
		c.step(t, onLanded, input{})
	case Corrupt:
		c.step(t, onSpoilt, input{reason: kvtransferv1.FailReason_FAIL_REASON_CHECKSUM, detail: ev.Detail})
	case Unwritable:
		c.step(t, onSpoilt, input{reason: kvtransferv1.FailReason_FAIL_REASON_DEVICE, detail: ev.Detail})
	}
}
