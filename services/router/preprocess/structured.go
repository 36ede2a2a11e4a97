package preprocess

import (
	"errors"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// structuredOf checks the form that a request asks for, so that nothing is spent on one that no
// worker can make a grammar of. stops are the tokens that end the request.
func (s *Models) structuredOf(q *inferencev1.GenerateRequest, stops []int32) (*inferencev1.StructuredOutput, error) {
	form := q.GetStructuredOutput()
	switch {
	case form == nil:
		return nil, nil
	case q.GetIgnoreEos():
		return nil, rpc.InvalidArgument("ignore_eos", "cannot be true with structured_output: a complete output could not end")
	case len(stops) == 0:
		return nil, rpc.InvalidArgument("structured_output", "the model has no end-of-sequence token, so that a complete output could not end: give one in stop_token_ids")
	}
	if _, err := s.grammars.Get(form); err != nil {
		if wrong, is := errors.AsType[*grammar.Error](err); is {
			return nil, rpc.InvalidArgument("structured_output."+wrong.Field, wrong.Problem)
		}
		return nil, rpc.InvalidArgument("structured_output", err.Error())
	}
	return form, nil
}
