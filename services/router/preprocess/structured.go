package preprocess

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// hold has a plan's output held to the form, or to the tool calls, that its request asks for.
// Forms are checked, so that nothing is spent on one that no worker can make a grammar of.
func (s *Models) hold(ctx context.Context, p *Plan, q *inferencev1.GenerateRequest) error {
	p.Structured = q.GetStructuredOutput()
	choice := q.GetConversation().GetToolChoice()
	field, what := "structured_output", "an output constraint"
	if choice != nil {
		if err := s.holdToCalls(ctx, p, q.GetConversation(), choice); err != nil {
			return err
		}
		field, what = "conversation.tool_choice", "tools that can be called"
	}
	switch {
	case p.Structured == nil:
		return nil
	case q.GetIgnoreEos():
		return rpc.InvalidArgument("ignore_eos", "cannot be true with "+what+": a complete output could not end")
	case len(p.StopTokens) == 0:
		return rpc.InvalidArgument(field, "the model has no end-of-sequence token, so that a complete output could not end: give one in stop_token_ids")
	}
	form, err := s.compile(ctx, p.Envelope.GetTenant(), p.Structured)
	if wrong, is := errors.AsType[*grammar.Error](err); is && choice != nil {
		return wrongTool(q.GetConversation(), p.Structured.GetStructuralTags(), wrong)
	} else if is {
		return wrongForm(wrong)
	} else if err != nil {
		return err
	}
	schema := "structured_output.structural_tags.tags[].json_schema."
	if choice != nil {
		schema = "conversation.tools[].function.parameters."
	}
	for _, keyword := range form.Ignored() {
		p.Ignored = append(p.Ignored, schema+keyword)
	}
	return nil
}

// compile checks a form. Its errors are gRPC statuses, and a *grammar.Error if the form is wrong.
func (s *Models) compile(ctx context.Context, tenant string, form *inferencev1.StructuredOutput) (*grammar.Grammar, error) {
	checked, release, err := s.grammars.Get(ctx, tenant, form)
	switch {
	case err == nil:
		release()
	case errors.Is(err, grammar.ErrBusy):
		return nil, rpc.Error(codes.ResourceExhausted, api.ReasonQueueFull, err.Error(), time.Second)
	case ctx.Err() != nil:
		return nil, clienterr.Gone(ctx)
	}
	return checked, err
}

func wrongForm(wrong *grammar.Error) error {
	return rpc.InvalidArgument("structured_output."+wrong.Field, wrong.Problem)
}
