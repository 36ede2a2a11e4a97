package kvtransfer

import (
	"errors"
	"fmt"

	"github.com/tandem-serving/tandem/pkg/api"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// ErrClosed is what Reserve and Open give after the end of Run or Close.
var ErrClosed = errors.New("kv transfer is closed")

// ErrFull is what Reserve gives when MaxReservations are held: try another
// worker, or again when one has ended.
var ErrFull = errors.New("too many kv reservations")

// RefusedError says that the receiver did not let a transfer begin. Nothing was
// reserved for it or written.
type RefusedError struct {
	// Reason is never UNSPECIFIED.
	Reason kvtransferv1.RefuseReason
	// Detail is for people.
	Detail string
}

// Error implements error.
func (e *RefusedError) Error() string {
	return withDetail("transfer refused", api.Name(e.Reason), e.Detail)
}

// FailedError says that the receiver ended a transfer without commit.
type FailedError struct {
	// Reason is never UNSPECIFIED.
	Reason kvtransferv1.FailReason
	// Detail is for people.
	Detail string
}

// Error implements error.
func (e *FailedError) Error() string {
	return withDetail("transfer failed at the receiver", api.Name(e.Reason), e.Detail)
}

// AbortedError says that the sender ended a transfer without commit.
type AbortedError struct {
	// Reason is what Abort was called with.
	Reason kvtransferv1.AbortReason
}

// Error implements error.
func (e *AbortedError) Error() string {
	return "transfer aborted by the sender: " + api.Name(e.Reason)
}

// BrokenError says that the stream ended under a transfer, or could not be
// joined: the peer died, is out of reach, fell silent or broke the protocol.
// Another worker may do better.
type BrokenError struct {
	// Peer is the worker id of the other side, where it is known.
	Peer string
	// Err is the cause. It may be a gRPC status.
	Err error
}

// Error implements error.
func (e *BrokenError) Error() string {
	return fmt.Sprintf("kv stream with %q: %v", e.Peer, e.Err)
}

// Unwrap gives the cause.
func (e *BrokenError) Unwrap() error { return e.Err }

func withDetail(what, reason, detail string) string {
	if detail == "" {
		return what + ": " + reason
	}
	return what + ": " + reason + ": " + detail
}
