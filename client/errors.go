package client

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errorDomain is the domain of every ErrorInfo of a mesh.
const errorDomain = "tandem"

const (
	// reasonRetryBudget is of a mesh that has tried often enough by itself: more tries would
	// only add to its load.
	reasonRetryBudget     = "RETRY_BUDGET"
	reasonRequestNotFound = "REQUEST_NOT_FOUND"
	// These are of an answer that could be resumed, and was given up: nobody read it for too long, or
	// it took too much memory.
	reasonClientGone, reasonUnread = "CLIENT_GONE", "UNREAD"
)

// Reason is the reason of an error that a mesh made, such as "CONTEXT_LENGTH_EXCEEDED"; else "".
func Reason(err error) string {
	if info := detail[*errdetails.ErrorInfo](err); info.GetDomain() == errorDomain {
		return info.GetReason()
	}
	return ""
}

// RetryAfter is how long an error asks to wait before another try, and whether it does.
func RetryAfter(err error) (time.Duration, bool) {
	delay := detail[*errdetails.RetryInfo](err).GetRetryDelay()
	return delay.AsDuration(), delay != nil
}

// detail is the first detail of type T of the status that err is or wraps; else T's zero value,
// whose getters work.
func detail[T any](err error) (first T) {
	var carrier interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &carrier) {
		return first
	}
	for _, d := range carrier.GRPCStatus().Details() {
		if t, is := d.(T); is {
			return t
		}
	}
	return first
}

// errorf is a status that this package makes itself.
func errorf(code codes.Code, reason, format string, arguments ...any) error {
	bare := status.New(code, fmt.Sprintf(format, arguments...))
	full, err := bare.WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: errorDomain})
	if err != nil { // only of a detail that does not marshal
		return bare.Err()
	}
	return full.Err()
}
