package kvtransfer

import (
	"errors"
	"fmt"

	"github.com/tandem-serving/tandem/pkg/api"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// ErrClosed is returned by Reserve once Run shuts down, and by Open after Close.
var ErrClosed = errors.New("kv transfer is closed")

// ErrFull is returned by Reserve at MaxReservations. Try another worker, or again once a
// reservation has ended.
var ErrFull = errors.New("too many kv reservations")

// ShareError is returned by Reserve if a holder has as many blocks as it may. Try another
// worker, or again once one of its reservations has ended.
type ShareError struct{ Holder string }

// Error implements error.
func (e *ShareError) Error() string {
	return fmt.Sprintf("transfers for %s hold their share of the kv blocks", e.Holder)
}

// RefusedError means that the receiver refused a transfer. Nothing was reserved or written.
type RefusedError struct {
	// Reason is never UNSPECIFIED.
	Reason kvtransferv1.RefuseReason
	// Detail is human-readable.
	Detail string
}

// Error implements error.
func (e *RefusedError) Error() string {
	return withDetail("transfer refused", api.Name(e.Reason), e.Detail)
}

// FailedError means that the receiver ended a transfer without commit.
type FailedError struct {
	// Reason is never UNSPECIFIED.
	Reason kvtransferv1.FailReason
	// Detail is human-readable.
	Detail string
}

// Error implements error.
func (e *FailedError) Error() string {
	return withDetail("transfer failed at the receiver", api.Name(e.Reason), e.Detail)
}

// AbortedError means that the sender ended a transfer without commit.
type AbortedError struct {
	// Reason is the argument of Abort.
	Reason kvtransferv1.AbortReason
}

// Error implements error.
func (e *AbortedError) Error() string {
	return "transfer aborted by the sender: " + api.Name(e.Reason)
}

// BrokenError means that the stream ended during a transfer or could not be opened: the
// peer died, is unreachable, fell silent or violated the protocol. Another worker may
// succeed.
type BrokenError struct {
	// Peer is the worker id of the other side, if known.
	Peer string
	// Err is the cause, possibly a gRPC status.
	Err error
}

// Error implements error.
func (e *BrokenError) Error() string {
	return fmt.Sprintf("kv stream with %q: %v", e.Peer, e.Err)
}

// Unwrap returns the cause.
func (e *BrokenError) Unwrap() error { return e.Err }

func withDetail(what, reason, detail string) string {
	if detail == "" {
		return what + ": " + reason
	}
	return what + ": " + reason + ": " + detail
}
