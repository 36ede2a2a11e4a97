package kvtransfer

import (
	"time"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
)

// ReceiverStats is a view of a Receiver at one moment, and counts since its start.
type ReceiverStats = receiver.Stats

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
