package serving

import (
	"net/http"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

// operation is what a request asks for, in the words of OpenTelemetry's
// conventions for generative AI. What came over HTTP may have its prompt in tokens
// already.
func operation(c Caller, q *inferencev1.GenerateRequest) string {
	if q.GetConversation() != nil || c.Chat {
		return "chat"
	}
	return "text_completion"
}

// transport adds how the request came.
func (t *requestTrace) transport(c Caller) {
	if t.status = c.HTTPStatus; t.status == nil {
		t.root.SetAttributes(
			attribute.String("rpc.system.name", "grpc"),
			attribute.String("rpc.method", strings.TrimPrefix(inferencev1.Inference_Generate_FullMethodName, "/")),
		)
		return
	}
	t.root.SetAttributes(attribute.String("http.request.method", http.MethodPost), attribute.String("http.route", c.Route))
}

// end ends the root with what the client was told. As rpc.EndSpan has it, what
// the client did is no error of the span.
func (t *requestTrace) end(err error, options ...trace.SpanEndOption) {
	if t.status == nil {
		rpc.EndSpan(t.root, err, options...)
		return
	}
	status := http.StatusOK
	if err != nil {
		status = t.status(err)
		reason := rpc.Reason(err)
		if reason != "" {
			t.root.SetAttributes(attribute.String("tandem.reason", reason))
		}
		if status >= http.StatusInternalServerError {
			t.root.SetAttributes(attribute.String("error.type", strconv.Itoa(status)))
			t.root.SetStatus(codes.Error, reason)
		}
	}
	t.root.SetAttributes(attribute.Int("http.response.status_code", status))
	t.root.End(options...)
}
