package openai

import (
	"slices"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/toolcalls"
)

// toolCall is a call that the model makes, or what a message of a stream adds to it.
type toolCall struct {
	Index    *int     `json:"index,omitempty"` // in streams
	ID       string   `json:"id,omitempty"`
	Type     string   `json:"type,omitempty"`
	Function function `json:"function"`
}

type function struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

// answerCalls reads the calls in one answer as it comes.
type answerCalls struct {
	format toolcalls.Format
	parser *toolcalls.Parser
	seed   string // of the ids of its calls
	made   []toolCall
	only   bool // what is no call is a part of one that is cut, and not said
}

// Finish reasons of answers with calls.
const (
	reasonStop         = "stop"
	reasonToolCalls    = "tool_calls"
	reasonFunctionCall = "function_call"
)

// expectCalls reads the calls of an answer that was accepted, if it may have any.
func (c *parsedRequest) expectCalls(accepted *inferencev1.Accepted) *answerCalls {
	format, known := toolcalls.Of(accepted.GetToolCallFormat(), "")
	if c.tools == nil || accepted.GetToolCallFormat() == "" || !known {
		return nil
	}
	parser := format.NewParser(c.tools.names, !c.stream)
	if c.tools.callsFirst {
		parser.CallsFirst()
	}
	if c.tools.single {
		parser.Single()
	}
	return &answerCalls{
		format: format, parser: parser,
		only: c.tools.required,
		seed: accepted.GetSecret() + "/" + accepted.GetRequestId(),
	}
}

// add takes in text of the answer, and returns what it says; last: it is the end.
func (a *answerCalls) add(text string, last bool) []toolcalls.Event {
	var events []toolcalls.Event
	if text != "" {
		events = a.parser.Add(text)
	}
	if last {
		events = append(events, a.parser.Finish()...)
	}
	if a.only {
		events = slices.DeleteFunc(events, func(e toolcalls.Event) bool { return e.Kind == toolcalls.Text })
	}
	return events
}

// delta is what events add to an answer: content, and pieces of calls.
func (a *answerCalls) delta(events []toolcalls.Event) (content string, calls []toolCall) {
	of := func(call int) *toolCall {
		if n := len(calls); n == 0 || *calls[n-1].Index != call {
			calls = append(calls, toolCall{Index: &call})
		}
		return &calls[len(calls)-1]
	}
	for _, e := range events {
		switch e.Kind {
		case toolcalls.Text:
			content += e.Text
		case toolcalls.Begin:
			c := of(e.Call)
			c.ID, c.Type, c.Function.Name = a.format.CallID(a.seed, e.Call), "function", e.Text
		case toolcalls.Arguments:
			of(e.Call).Function.Arguments += e.Text
		case toolcalls.End:
		}
	}
	return content, calls
}

// collect adds what events say to the calls so far, and returns the content.
func (a *answerCalls) collect(events []toolcalls.Event) (content string) {
	content, calls := a.delta(events)
	for _, c := range calls {
		if *c.Index == len(a.made) {
			a.made = append(a.made, toolCall{ID: c.ID, Type: c.Type, Function: function{Name: c.Function.Name}})
		}
		a.made[*c.Index].Function.Arguments += c.Function.Arguments
	}
	return content
}

// said is how calls are said to who asked for them.
func (c *parsedRequest) said(made []toolCall) calls {
	if len(made) > 0 && c.tools.old {
		return calls{Old: &made[0].Function}
	}
	return calls{Calls: made}
}

// reason is why an answer ended, in OpenAI's words: one that ended by itself with calls did so to
// have them made.
func (c *parsedRequest) reason(reason string, calls *answerCalls) string {
	switch {
	case calls == nil || reason != reasonStop || calls.parser.Calls() == 0 || calls.parser.Cut():
		return reason
	case c.tools.old:
		return reasonFunctionCall
	}
	return reasonToolCalls
}
