package protocolmodeltest_test

import (
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
)

// shipInto has a chunk written into the receiver's pages, like the sender's driver. It fails the
// test if the sender has not mapped them, or no longer.
func (w *world) shipInto(s *session, chunk *sender.WriteChunk, out *wire.Outbound) {
	o := s.transfers[chunk.ID]
	for _, run := range chunk.Chunk.Runs {
		for i := range run.Blocks {
			out.Targets = append(out.Targets, kvcache.BlockID(o.pages[run.First+i-o.ticket.GetHeldBlocks()]))
		}
	}
	switch {
	case s.target != w.receiver: // memory of a process that is gone
		out.Into = nowhere{}
	case s.mapping != mapped:
		w.fatalf("transfer %d: pages are written that are not mapped", chunk.ID)
	default:
		out.Into = &target{w: w, transfer: chunk.ID}
	}
}

// nowhere is pages that nobody reads.
type nowhere struct{}

func (nowhere) View(int, kvcache.BlockID) []byte { return make([]byte, sliceBytes) }
