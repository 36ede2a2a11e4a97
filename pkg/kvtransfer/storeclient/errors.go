package storeclient

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// ErrHeld says that the store has all the blocks already, or that another worker
// is putting them at the moment: there is nothing to do.
var ErrHeld = errors.New("the store already has the blocks")

// ErrRestarted says that the store is another incarnation than the one meant:
// what it had is lost.
var ErrRestarted = errors.New("the store was restarted")

// ErrClientClosed is what calls give after Close.
var ErrClientClosed = errors.New("the store's client is closed")

// MissingError says that the store does not have all the blocks.
type MissingError struct {
	// Blocks is how many leading ones it has.
	Blocks int
}

// Error implements error.
func (e *MissingError) Error() string {
	return fmt.Sprintf("the store has only the first %d of the blocks", e.Blocks)
}

// BusyError says that the store takes or gives nothing at the moment.
type BusyError struct {
	// RetryAfter is when it may be worth another try; 0: not known, or not at all
	// since the store leaves.
	RetryAfter time.Duration
	// Err is what it said.
	Err error
}

// Error implements error.
func (e *BusyError) Error() string { return fmt.Sprintf("the store is busy: %v", e.Err) }

// Unwrap gives what the store said.
func (e *BusyError) Unwrap() error { return e.Err }

// LayoutError says that the store takes no blocks of this layout: it holds those of
// another one, or not one of these fits (api.ReasonStoreTooSmall of Err).
type LayoutError struct {
	// Err is what it said.
	Err error
}

// Error implements error.
func (e *LayoutError) Error() string {
	return fmt.Sprintf("the store does not serve these blocks: %v", e.Err)
}

// Unwrap gives what the store said.
func (e *LayoutError) Unwrap() error { return e.Err }

// callError gives what a store answered a type.
func callError(peer Peer, err error) error {
	if errors.Is(err, ErrClientClosed) {
		return err
	}
	after, _ := rpc.RetryAfter(err)
	switch rpc.Reason(err) {
	case api.ReasonBlocksHeld:
		return ErrHeld
	case api.ReasonBlocksArriving, api.ReasonStoreFull, api.ReasonStoreBusy, api.ReasonRateLimited, api.ReasonWorkerDraining:
		return &BusyError{RetryAfter: after, Err: err}
	case api.ReasonLayoutMismatch, api.ReasonStoreTooSmall:
		return &LayoutError{Err: err}
	case api.ReasonWrongEpoch:
		return ErrRestarted
	case api.ReasonBlocksMissing:
		return &MissingError{Blocks: missingBlocks(err)}
	}
	if unreachable(err) {
		return &kvtransfer.BrokenError{Peer: peer.ID, Err: err}
	}
	return err
}

// unreachable says that the call did not come to a store: the connection failed.
func unreachable(err error) bool {
	return status.Code(err) == codes.Unavailable && rpc.Reason(err) == ""
}

// MissingStatus is the status with which a store answers that has only so many leading
// blocks of those that were asked for: callers get a *MissingError.
func MissingStatus(held, asked int) error {
	bare := status.Newf(codes.NotFound, "the store has %d of the %d blocks: fetch those, or compute all", held, asked)
	full, err := bare.WithDetails(&errdetails.ErrorInfo{
		Reason: api.ReasonBlocksMissing, Domain: api.ErrorDomain, Metadata: map[string]string{api.MetadataBlocks: strconv.Itoa(held)},
	})
	if err != nil { // only for codes.OK, or a detail that does not marshal
		return bare.Err()
	}
	return full.Err()
}

// missingBlocks is what a store said it holds; 0 for a store that does not say.
func missingBlocks(err error) int {
	for _, detail := range status.Convert(err).Details() {
		if info, is := detail.(*errdetails.ErrorInfo); is {
			blocks, _ := strconv.Atoi(info.GetMetadata()[api.MetadataBlocks])
			return max(blocks, 0)
		}
	}
	return 0
}
