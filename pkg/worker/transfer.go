package worker

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// TransferRefusedError is the status for a transfer that its receiver did not take; err says
// why.
func TransferRefusedError(reason kvtransferv1.RefuseReason, err error) error {
	code := api.ReasonTransferRefused
	switch reason {
	case kvtransferv1.RefuseReason_REFUSE_REASON_WRONG_EPOCH,
		kvtransferv1.RefuseReason_REFUSE_REASON_LAYOUT,
		kvtransferv1.RefuseReason_REFUSE_REASON_ENCODING:
		// Not of this transfer but of all between these two workers: the address leads to
		// another one, or they have nothing in common.
		code = api.ReasonTransferUnreachable
	}
	return rpc.Error(codes.Unavailable, code, fmt.Sprintf("the decode worker refuses the KV: %v", err), 0)
}

// TransferNotStartedError is the status for a transfer that could not begin. broken: no
// address leads to the receiver, it refused the connection, or its answer is late.
func TransferNotStartedError(err error, broken bool) error {
	code := api.ReasonTransferFailed
	if broken {
		code = api.ReasonTransferUnreachable
	}
	return rpc.Error(codes.Unavailable, code, fmt.Sprintf("cannot start a transfer to the decode worker: %v", err), 0)
}

// Transferred is when what happened to a transfer, since it was opened; zero: it did not.
type Transferred struct {
	// FirstOffered and LastOffered are of its slices, Computed is of the last one that a step
	// computed, LastSent is when the last byte went out.
	FirstOffered, LastOffered, Computed, LastSent time.Duration
	// Acknowledged is when the receiver had committed it.
	Acknowledged time.Duration
	Bytes        uint64
	// PathBytes were sent to the same receiver while the transfer was open, and for so long of that
	// there was something to send or on its way.
	PathBytes int64
	PathBusy  time.Duration
	Transport string
}

// Message is what the router is told of a transfer.
func (t Transferred) Message() *workerv1.KvSent {
	sent := &workerv1.KvSent{Bytes: t.Bytes, Transport: t.Transport}
	if t.Acknowledged > 0 {
		sent.PathBytes, sent.PathBusyNs = uint64(max(t.PathBytes, 0)), t.PathBusy.Nanoseconds()
		if t.Bytes > 0 { // else the receiver held all, and nothing was offered
			sent.TailNs = max(t.Acknowledged-max(t.LastSent, t.Computed), 0).Nanoseconds()
			sent.TransferNs = (t.Acknowledged - t.FirstOffered).Nanoseconds()
		}
		sent.ExposedNs = max(t.Acknowledged-t.LastOffered, 0).Nanoseconds()
	}
	return sent
}

// brokenTransfer is the status for a transfer to this worker that ended without commit.
func brokenTransfer(err error, finished bool) error {
	if finished {
		return rpc.Error(codes.Canceled, api.ReasonFinishedAtPrefill, "the first token ended the request: nothing is left to decode", 0)
	}
	code := codes.Unavailable
	if status.Code(err) == codes.Canceled { // the sender's caller went away, as this one's will
		code = codes.Canceled
	}
	return rpc.Error(code, api.ReasonTransferFailed, "the KV did not arrive: "+status.Convert(err).Message(), 0)
}
