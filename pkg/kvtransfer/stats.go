package kvtransfer

import (
	"time"

	"github.com/tandem-serving/tandem/services/kvtransfer/internal/receiver"
)

// ReceiverStats is a view of a Receiver at one moment, and counts since its
// start.
type ReceiverStats struct {
	// Reserved transfers wait for their sender, Open ones are under way, Ending
	// ones are over but not drained.
	Reserved, Open, Ending int
	// QuarantinedBlocks are those of Ending: nobody may have them yet.
	QuarantinedBlocks int
	// Streams are the senders that are connected.
	Streams int
	// Committed, Failed (here), Aborted (by the sender), Broken (with their stream)
	// and Cancelled (by their owner) count how transfers ended, since the start.
	Committed, Failed, Aborted, Broken, Cancelled uint64
	// PayloadBytes counts what was copied into pages, since the start.
	PayloadBytes uint64
}

func receiverStats(s receiver.Stats) ReceiverStats {
	return ReceiverStats{
		Reserved: s.Reserved, Open: s.Open, Ending: s.Ending,
		QuarantinedBlocks: s.QuarantinedBlocks, Streams: s.Streams,
		Committed: s.Committed, Failed: s.Failed, Aborted: s.Aborted, Broken: s.Broken, Cancelled: s.Cancelled,
		PayloadBytes: s.PayloadBytes,
	}
}

// TransferStats is what became of one transfer at its sender. Times are since
// Open was called, by the sender's clock; 0 is not yet.
type TransferStats struct {
	// Bytes and Chunks were given to the network.
	Bytes  uint64
	Chunks int
	// Accepted is when the receiver let it begin.
	Accepted time.Duration
	// FirstOffered is when Send was first called, LastOffered when Commit was.
	FirstOffered, LastOffered time.Duration
	// LastSend is when Send was last called: when the last layer's keys and values
	// were computed.
	LastSend time.Duration
	// Computed is when Computed was last called: when the layers were computed whole.
	// 0: nobody said, as where all came from a cache.
	Computed time.Duration
	// Acknowledged is when the receiver said that all had arrived.
	Acknowledged time.Duration
	// Transport is what it goes over: "tcp", "unix", or "device", where both sides' pages
	// are in one memory and slices are copied there.
	Transport string
}
