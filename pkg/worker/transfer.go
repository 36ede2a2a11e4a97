package worker

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

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
