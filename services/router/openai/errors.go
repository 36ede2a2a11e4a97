package openai

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// Failure is an error as OpenAI's API gives it.
type Failure struct {
	// Status of the HTTP answer.
	Status int
	// Message for people.
	Message string
	// Type is the coarse kind, such as "invalid_request_error".
	Type string
	// Param is the field of the request that is wrong; empty: none.
	Param string
	// Code is what programs compare; empty: none.
	Code string
	// RetryAfter is how long to wait before another try; 0: nothing is said.
	RetryAfter time.Duration
}

// Error is the message.
func (f *Failure) Error() string { return f.Message }

// statusClientGone is what proxies write into their logs of a request whose client
// left before the answer.
const statusClientGone = 499

// Values of Failure.Type and Failure.Code.
const (
	typeInvalid = "invalid_request_error"
	typeLimit   = "rate_limit_error"
	typeServer  = "server_error"

	codeValue       = "invalid_value"
	codeType        = "invalid_type"
	codeUnsupported = "unsupported_parameter"
	codeMissing     = "missing_required_parameter"
)

func refuse(param, code, problem string) error {
	return &Failure{Status: http.StatusBadRequest, Message: param + ": " + problem, Type: typeInvalid, Param: param, Code: code}
}

func invalid(param, problem string) error     { return refuse(param, codeValue, problem) }
func unsupported(param, problem string) error { return refuse(param, codeUnsupported, problem) }
func wrongType(param, want string) error      { return refuse(param, codeType, "has to be "+want) }

func malformed(message string) error {
	return &Failure{Status: http.StatusBadRequest, Message: message, Type: typeInvalid, Code: "invalid_json"}
}

// kinds are the statuses of gRPC as HTTP has them.
var kinds = map[codes.Code]struct {
	status int
	kind   string
}{
	codes.InvalidArgument:    {http.StatusBadRequest, typeInvalid},
	codes.FailedPrecondition: {http.StatusBadRequest, typeInvalid},
	codes.OutOfRange:         {http.StatusBadRequest, typeInvalid},
	codes.Unauthenticated:    {http.StatusUnauthorized, "authentication_error"},
	codes.PermissionDenied:   {http.StatusForbidden, "permission_error"},
	codes.NotFound:           {http.StatusNotFound, typeInvalid},
	codes.AlreadyExists:      {http.StatusConflict, typeInvalid},
	codes.Aborted:            {http.StatusConflict, typeServer},
	codes.ResourceExhausted:  {http.StatusTooManyRequests, typeLimit},
	codes.Canceled:           {statusClientGone, typeInvalid},
	codes.Unimplemented:      {http.StatusNotImplemented, typeServer},
	codes.Unavailable:        {http.StatusServiceUnavailable, typeServer},
	codes.DeadlineExceeded:   {http.StatusGatewayTimeout, typeServer},
}

// FailureOf is an error of the Backend, or of this package, as OpenAI's API gives
// it. Fields keep the Backend's names.
func FailureOf(err error) *Failure {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f
	}
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	f := &Failure{Status: http.StatusInternalServerError, Message: s.Message(), Type: typeServer, Code: strings.ToLower(rpc.Reason(err)), Param: rpc.Field(err)}
	if kind, known := kinds[s.Code()]; known {
		f.Status, f.Type = kind.status, kind.kind
	}
	switch rpc.Reason(err) {
	case api.ReasonInvalidField:
		f.Code = codeValue
	case api.ReasonNoCredentials, api.ReasonInvalidCredentials:
		f.Code = "invalid_api_key"
	case api.ReasonTenantQuota:
		f.Code = "rate_limit_exceeded"
	case api.ReasonContextLengthExceeded:
		// Clients look for the words that OpenAI's message begins with.
		f.Message = strings.TrimPrefix(f.Message, f.Param+": ")
	}
	if wait, ok := rpc.RetryAfter(err); ok {
		f.RetryAfter = wait
	} else if f.Status == http.StatusTooManyRequests || f.Status == http.StatusServiceUnavailable {
		f.RetryAfter = time.Second
	}
	if f.Status == http.StatusNotFound && f.Param == "" {
		f.Param = "model" // the only thing that a request can name
	}
	return f
}

// body is the failure's object.
func (f *Failure) body() errorBody {
	out := errorBody{Error: errorObject{Message: f.Message, Type: f.Type}}
	if f.Param != "" {
		out.Error.Param = &f.Param
	}
	if f.Code != "" {
		out.Error.Code = &f.Code
	}
	return out
}

// Write sends the failure as the answer to a request that no Handler gets.
func (f *Failure) Write(w http.ResponseWriter) error {
	body, err := marshal(f.body())
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	f.setRetry(w.Header())
	w.WriteHeader(f.Status)
	_, err = w.Write(append(body, '\n'))
	return err
}

// IsAPI reports whether a Handler answers at this URL, or whoever asks takes it for one of OpenAI's API.
func IsAPI(u *url.URL) bool {
	_, _, serve := new(Handler).route(u)
	return serve != nil || strings.HasPrefix(u.Path, "/v1/")
}

type errorBody struct {
	Error errorObject `json:"error"`
}

type errorObject struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// headerShouldRetry tells OpenAI's clients whether to repeat a request, whatever its status.
const headerShouldRetry = "X-Should-Retry"

// setRetry says in both units when to try again: whole seconds, which every client
// knows, and milliseconds, which OpenAI's clients prefer. These repeat every 5xx; of those,
// only a 503, or one that says when, may go well. A test compares that with the reasons in pkg/api.
func (f *Failure) setRetry(header http.Header) {
	switch {
	case f.RetryAfter > 0:
		header.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(f.RetryAfter.Seconds())), 10))
		header.Set("Retry-After-Ms", strconv.FormatInt(max(1, f.RetryAfter.Milliseconds()), 10))
	case f.Status >= http.StatusInternalServerError && f.Status != http.StatusServiceUnavailable:
		header.Set(headerShouldRetry, "false")
	}
}

// rename gives a failure's field the name that it has in the request; nil stays nil.
func rename(err error, names func(field string) string) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*Failure](err); ok {
		return err // this package's own
	}
	f := FailureOf(err)
	name := names(f.Param)
	if f.Param == "" || name == f.Param {
		return f
	}
	if rest, ok := strings.CutPrefix(f.Message, f.Param+": "); ok {
		f.Message = name + ": " + rest
	}
	f.Param = name
	return f
}

func noRoute(method, path string) error {
	return &Failure{
		Status: http.StatusNotFound, Type: typeInvalid, Code: "unknown_url",
		Message: fmt.Sprintf("there is no %s %s here; there are GET /v1/models, GET /v1/models/{model}, POST /v1/completions, POST /v1/chat/completions, POST /v1/responses and POST /v1/embeddings, which GET /openapi.json describes", method, path),
	}
}

func noMethod(method, path, allowed string) error {
	return &Failure{
		Status: http.StatusMethodNotAllowed, Type: typeInvalid, Code: "method_not_allowed",
		Message: fmt.Sprintf("%s takes %s, not %s", path, allowed, method),
	}
}
