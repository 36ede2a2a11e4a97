package receiver

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// check converts a chunk to its stream's write. If the chunk is invalid, it returns why,
// and detail is not empty. The sender's numbers are used only after they were found to lie
// within the reservation.
func (c *Core) check(t *transfer, s *stream, m *wire.Chunk) (reason kvtransferv1.FailReason, detail string) {
	const (
		protocol   = kvtransferv1.FailReason_FAIL_REASON_PROTOCOL
		incomplete = kvtransferv1.FailReason_FAIL_REASON_INCOMPLETE
	)
	due, size := t.lanes[s.stripe].sequence, m.PayloadBytes
	switch {
	case t.lanes[s.stripe].committed:
		return protocol, fmt.Sprintf("stripe %d carried more after its commit", s.stripe)
	case m.Sequence != due:
		return incomplete, fmt.Sprintf("chunk %d came over stripe %d where %d was due", m.Sequence, s.stripe, due)
	case uint64(m.Layer) >= uint64(c.cfg.Layers):
		return protocol, fmt.Sprintf("chunk %d is for layer %d, but there are %d layers", due, m.Layer, c.cfg.Layers)
	case size == 0 || size%t.sliceBytes != 0:
		return protocol, fmt.Sprintf("chunk %d has %d bytes, not a multiple of the slice size, %d", due, size, t.sliceBytes)
	case size > c.cfg.MaxChunkBytes:
		return protocol, fmt.Sprintf("chunk %d has %d bytes, more than the limit of %d", due, size, c.cfg.MaxChunkBytes)
	}
	layer := int(m.Layer)
	slices := size / t.sliceBytes
	blocks := s.write.Blocks[:0]
	past := uint64(0)
	for _, run := range m.Runs {
		first, count := uint64(run.First), uint64(run.Blocks)
		if count == 0 || first < past {
			return protocol, fmt.Sprintf("chunk %d has runs that are not in ascending order", due)
		}
		past = first + count
		if first < uint64(t.held) || past > uint64(len(t.blocks)) {
			return incomplete, fmt.Sprintf("chunk %d has blocks %d to %d, but only %d to %d are expected", due, first, past, t.held, len(t.blocks))
		}
		if count > uint64(slices-len(blocks)) {
			return protocol, fmt.Sprintf("chunk %d names more slices than it carries", due)
		}
		if !t.seen.Add(layer, int(first)-t.held, int(count)) {
			return incomplete, fmt.Sprintf("chunk %d brings slices of layer %d, blocks %d to %d, a second time", due, layer, first, past)
		}
		blocks = append(blocks, t.blocks[first:past]...)
	}
	if len(blocks) != slices {
		return protocol, fmt.Sprintf("chunk %d names %d slices but carries %d", due, len(blocks), slices)
	}
	s.write = Write{Stream: s.id, ID: t.id, Layer: layer, Blocks: blocks, Encoding: t.encoding, Bytes: size}
	return 0, ""
}

// written processes the end of a copy. It counts as a sign of life, since the sender's
// messages may have waited behind the copy.
func (c *Core) written(ev Written) {
	if s := c.streams[ev.Stream]; s != nil {
		c.landed(s, ev.Bytes)
	}
	t := c.transfers[ev.ID]
	if t == nil || t.writing == 0 {
		return
	}
	t.writing--
	if t.session != nil {
		t.session.writing--
		t.session.heard = c.now
	}
	switch ev.Outcome {
	case Landed:
		t.bytes += uint64(ev.Bytes)
		c.totals.PayloadBytes += uint64(ev.Bytes)
		c.step(t, onLanded, input{})
	case Withdrawn:
		c.step(t, onWithdrawn, input{reason: kvtransferv1.FailReason_FAIL_REASON_PROTOCOL, detail: ev.Detail})
	case Corrupt:
		c.step(t, onCopyFailed, input{reason: kvtransferv1.FailReason_FAIL_REASON_CHECKSUM, detail: ev.Detail})
	case Undecodable:
		c.step(t, onCopyFailed, input{reason: kvtransferv1.FailReason_FAIL_REASON_PROTOCOL, detail: ev.Detail})
	case Unwritable:
		c.step(t, onCopyFailed, input{reason: kvtransferv1.FailReason_FAIL_REASON_DEVICE, detail: ev.Detail})
	}
}
