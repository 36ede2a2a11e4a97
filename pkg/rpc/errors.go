package rpc

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tandem-serving/tandem/pkg/api"
)

// InvalidArgument is an INVALID_ARGUMENT status that names a field of the
// request, as a path like "sampling.top_p" or "stop[2]". The message is
// "field: problem"; the problem says what to do.
func InvalidArgument(field, problem string) error {
	return invalidField(api.ReasonInvalidField, field, problem)
}

// ContextLength is InvalidArgument with a reason of its own, for what does not fit into the
// model's context: clients can shorten the prompt, or ask for less, and try again.
func ContextLength(field, problem string) error {
	return invalidField(api.ReasonContextLengthExceeded, field, problem)
}

// ConstraintEffort is InvalidArgument with a reason of its own, for an output whose form took all the work
// that one output may.
func ConstraintEffort(field, problem string) error {
	return invalidField(api.ReasonConstraintEffort, field, problem)
}

func invalidField(reason, field, problem string) error {
	return withDetails(codes.InvalidArgument, field+": "+problem,
		&errdetails.ErrorInfo{Reason: reason, Domain: api.ErrorDomain},
		&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: field, Description: problem},
		}})
}

// Error is a status with an ErrorInfo and, if retryAfter is above zero, a
// RetryInfo. The reason is a constant in UPPER_SNAKE_CASE that programs compare;
// the message is for people and says what to do.
func Error(code codes.Code, reason, message string, retryAfter time.Duration) error {
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: reason, Domain: api.ErrorDomain}}
	if retryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(retryAfter)})
	}
	return withDetails(code, message, details...)
}

// Errorf is Error with a formatted message and without a RetryInfo.
func Errorf(code codes.Code, reason, format string, arguments ...any) error {
	return Error(code, reason, fmt.Sprintf(format, arguments...), 0)
}

func withDetails(code codes.Code, message string, details ...protoadapt.MessageV1) error {
	bare := status.New(code, message)
	full, err := bare.WithDetails(details...)
	if err != nil { // only for codes.OK, or a detail that does not marshal
		return bare.Err()
	}
	return full.Err()
}

// Reason is the reason of the error's ErrorInfo, if it is Tandem's; else "".
func Reason(err error) string {
	if info := detail[*errdetails.ErrorInfo](err); info.GetDomain() == api.ErrorDomain {
		return info.GetReason()
	}
	return ""
}

// Refused says whether a call failed for the credentials of its caller.
func Refused(err error) bool {
	code := status.Code(err)
	return code == codes.Unauthenticated || code == codes.PermissionDenied
}

// AnsweredHTTP says whether a call failed since a server of HTTP/1.1 has answered it, as
// one does that is called at the wrong one of its addresses.
func AnsweredHTTP(err error) bool {
	s := status.Convert(err)
	return s.Code() == codes.Unavailable && strings.Contains(s.Message(), "looked like an HTTP/1.1 header")
}

// AnsweredOtherwise says whether a call failed since what listens there speaks neither gRPC nor,
// as AnsweredHTTP knows it, HTTP/1.1.
func AnsweredOtherwise(err error) bool {
	s := status.Convert(err)
	return s.Code() == codes.Unavailable && strings.Contains(s.Message(), "error reading server preface") && !AnsweredHTTP(err)
}

// DialProblem is why a call found no connection, for people, such as "connection refused";
// empty if that is not why it failed.
func DialProblem(err error) string {
	_, problem, is := strings.Cut(status.Convert(err).Message(), "Error while dialing: ")
	switch {
	case !is:
		return ""
	case strings.Contains(problem, ": lookup "):
		return "the name does not resolve"
	}
	parts := strings.Split(strings.TrimSuffix(problem, `"`), ": ") // dial tcp ADDRESS: connect: PROBLEM
	return parts[len(parts)-1]
}

// RetryAfter is how long the error asks to wait before another try, and whether
// it does.
func RetryAfter(err error) (time.Duration, bool) {
	info := detail[*errdetails.RetryInfo](err)
	if info.GetRetryDelay() == nil {
		return 0, false
	}
	return info.GetRetryDelay().AsDuration(), true
}

// Field is the first field that the error's BadRequest names; else "".
func Field(err error) string {
	violations := detail[*errdetails.BadRequest](err).GetFieldViolations()
	if len(violations) == 0 {
		return ""
	}
	return violations[0].GetField()
}

// detail is the first detail of type T of the status that err is or wraps; else
// T's zero value, whose getters work.
func detail[T any](err error) T {
	var zero T
	var carrier interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &carrier) {
		return zero
	}
	for _, d := range carrier.GRPCStatus().Details() {
		if t, ok := d.(T); ok {
			return t
		}
	}
	return zero
}
