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
	"github.com/tandem-serving/tandem/pkg/blockstore"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// ErrHeld means that the store has all the blocks: there is nothing to do.
var ErrHeld = errors.New("the store already has the blocks")

// ErrArriving means that another caller is putting the first block that the store lacks: no put
// has begun. The store's error, which it comes with, may say when to offer them again.
var ErrArriving = errors.New("another worker is putting the blocks")

// ErrRestarted means that the store is another incarnation than the addressed one. Its
// former contents are lost.
var ErrRestarted = errors.New("the store was restarted")

// ErrClientClosed is returned by calls after Close.
var ErrClientClosed = errors.New("the store's client is closed")

// MissingError means that the store lacks some of the blocks.
type MissingError struct {
	// Blocks is how many leading blocks it has.
	Blocks int
}

// Error implements error.
func (e *MissingError) Error() string {
	return fmt.Sprintf("the store has only the first %d of the blocks", e.Blocks)
}

// BusyError means that the store accepts no puts or fetches now.
type BusyError struct {
	// RetryAfter is when to retry. 0: unknown, or never because the store is shutting down.
	RetryAfter time.Duration
	// Err is the store's answer.
	Err error
}

// Error implements error.
func (e *BusyError) Error() string { return fmt.Sprintf("the store is busy: %v", e.Err) }

// Unwrap returns the store's answer.
func (e *BusyError) Unwrap() error { return e.Err }

// LayoutError means that the store does not accept this layout: it holds blocks of another
// one, or is too small for one block (api.ReasonStoreTooSmall in Err).
type LayoutError struct {
	// Err is the store's answer.
	Err error
}

// Error implements error.
func (e *LayoutError) Error() string {
	return fmt.Sprintf("the store does not serve these blocks: %v", e.Err)
}

// Unwrap returns the store's answer.
func (e *LayoutError) Unwrap() error { return e.Err }

// ErrNotFinite is of blocks that are no use to anybody.
var ErrNotFinite = errors.New("the blocks are not finite")

// CheckError means that this worker did not look through the blocks, or left the store less than half
// of the time of a put: it was too slow, or cannot read them. It says nothing of the store.
type CheckError struct {
	// Err is that of ClientConfig.Check, or of the call's context.
	Err error
}

// Error implements error.
func (e *CheckError) Error() string {
	return fmt.Sprintf("check that the blocks are finite: %v", e.Err)
}

// Unwrap returns the cause.
func (e *CheckError) Unwrap() error { return e.Err }

// CallError converts a store's answer to a typed error. Any other error stays what it is.
func CallError(err error) error {
	if errors.Is(err, ErrClientClosed) {
		return err
	}
	after, _ := rpc.RetryAfter(err)
	switch rpc.Reason(err) {
	case api.ReasonBlocksHeld:
		return ErrHeld
	case api.ReasonBlocksArriving:
		return fmt.Errorf("%w: %w", ErrArriving, err)
	case api.ReasonStoreFull, api.ReasonStoreBusy, api.ReasonWorkerDraining:
		return &BusyError{RetryAfter: after, Err: err}
	case api.ReasonLayoutMismatch, api.ReasonStoreTooSmall:
		return &LayoutError{Err: err}
	case api.ReasonWrongEpoch:
		return ErrRestarted
	case api.ReasonBlocksMissing:
		return &MissingError{Blocks: missingBlocks(err)}
	}
	return err
}

// unreachable reports whether the connection failed, so that the call did not reach a
// store.
func unreachable(err error) bool {
	return status.Code(err) == codes.Unavailable && rpc.Reason(err) == ""
}

// MissingStatus is the store's error when it has only held of the asked leading blocks.
// Callers get it as a *MissingError.
func MissingStatus(held, asked int) error {
	bare := status.Newf(codes.NotFound, "the store has %d of the %d blocks: fetch those, or compute all", held, asked)
	full, err := bare.WithDetails(&errdetails.ErrorInfo{
		Reason: api.ReasonBlocksMissing, Domain: api.ErrorDomain, Metadata: map[string]string{api.MetadataBlocks: strconv.Itoa(held)},
	})
	if err != nil { // only for codes.OK or a detail that cannot be marshalled
		return bare.Err()
	}
	return full.Err()
}

// BusyRetry is when a store that is busy may be asked again.
const BusyRetry = 100 * time.Millisecond

// OfferStatus is the store's error for an offer of so many blocks, of total that it has, which
// it did not take. Callers get it as ErrHeld, ErrArriving or a *BusyError.
func OfferStatus(verdict blockstore.Verdict, asked, total int) error {
	switch verdict {
	case blockstore.Held:
		return rpc.Error(codes.AlreadyExists, api.ReasonBlocksHeld, "the store already has all these blocks", 0)
	case blockstore.Arriving:
		return rpc.Error(codes.Aborted, api.ReasonBlocksArriving, "another worker is putting the first of these blocks that lack: offer them again later", time.Second)
	case blockstore.TooLarge:
		return rpc.Errorf(codes.ResourceExhausted, api.ReasonStoreFull, "the store has only %d blocks in all, but %d are offered: offer fewer", total, asked)
	case blockstore.Full:
		return rpc.Error(codes.ResourceExhausted, api.ReasonStoreFull, "the store is busy with other transfers: offer again later", time.Second)
	default:
		return rpc.Error(codes.ResourceExhausted, api.ReasonStoreBusy, "too many transfers into this store at once: offer again later", BusyRetry)
	}
}

// FetchStatus is the store's error for a fetch of so many blocks, of which it has the first
// held, which it did not begin. Callers get it as a *MissingError or *BusyError.
func FetchStatus(verdict blockstore.Verdict, held, asked int) error {
	if verdict == blockstore.Missing {
		return MissingStatus(held, asked)
	}
	return rpc.Error(codes.ResourceExhausted, api.ReasonStoreBusy, "too many transfers out of this store at once: ask again later, or compute the prompt", BusyRetry)
}

// missingBlocks returns how many blocks the store said it has, 0 if it did not say.
func missingBlocks(err error) int {
	for _, detail := range status.Convert(err).Details() {
		if info, is := detail.(*errdetails.ErrorInfo); is {
			blocks, _ := strconv.Atoi(info.GetMetadata()[api.MetadataBlocks])
			return max(blocks, 0)
		}
	}
	return 0
}
