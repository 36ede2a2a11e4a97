package kvtransfer

import (
	"time"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
)

// ReceiverStats is a snapshot of a Receiver with counts since its start.
type ReceiverStats = receiver.Stats

// TransferStats describes one transfer at its sender. Times are since Open was called, by
// the sender's clock; 0 means not yet.
type TransferStats struct {
	// Bytes and Chunks written to the network or into the receiver's pages.
	Bytes  uint64
	Chunks int
	// Stored is how many of Bytes an engine stored in the receiver's pages itself (Transfer.Mirror):
	// they were not copied.
	Stored uint64
	// Accepted is when the receiver accepted.
	Accepted time.Duration
	// FirstOffered is when Send was first called, LastOffered when Commit was.
	FirstOffered, LastOffered time.Duration
	// LastSend is when Send was last called, which is when the last layer's keys and values
	// were computed.
	LastSend time.Duration
	// Computed is when Computed was last called, which is when the last layer was computed.
	// 0: never called, as when all KV came from a cache.
	Computed time.Duration
	// Acknowledged is when the receiver confirmed the commit.
	Acknowledged time.Duration
	// PathBytes is what was sent to the same receiver while the transfer was open, in bytes of
	// pages, and PathBusy for how long of that there was something to send or on its way.
	PathBytes int64
	PathBusy  time.Duration
	// Transport is "tcp", "unix", "shm" if slices are written into the receiver's pages, which
	// this side has mapped, or "device" if both sides' pages are in one memory and slices are
	// copied there.
	Transport string
}

// Message is what the router is told of a transfer.
func (t TransferStats) Message() *workerv1.KvSent {
	sent := &workerv1.KvSent{Bytes: t.Bytes, Transport: t.Transport}
	if t.Acknowledged > 0 {
		sent.PathBytes, sent.PathBusyNs = uint64(max(t.PathBytes, 0)), t.PathBusy.Nanoseconds()
		if t.Bytes > 0 { // else the receiver held all, and nothing was offered
			sent.TailNs = max(t.Acknowledged-max(t.LastSend, t.Computed), 0).Nanoseconds()
			sent.TransferNs = (t.Acknowledged - t.FirstOffered).Nanoseconds()
		}
		sent.ExposedNs = max(t.Acknowledged-t.LastOffered, 0).Nanoseconds()
	}
	return sent
}
