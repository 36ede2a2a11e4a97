package preprocess

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/structpb"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/chat"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// Bounds of conversations, as inference.proto states them.
const (
	maxMessages  = 4096
	maxTools     = 512
	maxToolCalls = 128
	maxNameBytes = 256 // of roles, speakers and ids of calls
)

// renderConversation makes a prompt of a conversation with the model's template.
func renderConversation(ctx context.Context, c *inferencev1.Conversation, m *Model) (string, error) {
	if m.Chat == nil {
		problem := chat.ErrNone
		if m.ChatError != nil {
			problem = m.ChatError
		}
		return "", rpc.InvalidArgument("conversation", fmt.Sprintf("%s cannot chat: %v; ask for the completion of a prompt instead", m.Spec.Name, problem))
	}
	conversation, err := conversationOf(c)
	if err != nil {
		return "", err
	}
	prompt, err := m.render(ctx, conversation)
	var problem *chat.Error
	switch {
	case err == nil && prompt == "":
		return "", rpc.InvalidArgument("conversation", "the model's chat template turns it into an empty prompt")
	case err == nil:
		return prompt, nil
	case ctx.Err() != nil:
		return "", clienterr.Gone(ctx)
	case errors.As(err, &problem) && problem.Raised:
		return "", rpc.InvalidArgument("conversation", "the model's chat template refuses it: "+problem.Message)
	case errors.As(err, &problem):
		return "", rpc.InvalidArgument("conversation", problem.Error())
	}
	// Of a field: its path comes first.
	path, what, _ := strings.Cut(err.Error(), ": ")
	return "", rpc.InvalidArgument("conversation."+path, what)
}

// render is the template's Render, in turn.
func (m *Model) render(ctx context.Context, conversation chat.Conversation) (string, error) {
	done, err := turn(ctx, m.rendering)
	if err != nil {
		return "", err
	}
	defer done()
	return m.Chat.Render(ctx, conversation)
}

// conversationOf checks a conversation, and puts it into the template's terms.
func conversationOf(c *inferencev1.Conversation) (chat.Conversation, error) {
	out := chat.Conversation{ContinueLast: c.GetContinueLastMessage(), Arguments: c.GetTemplateArguments().AsMap()}
	switch n := len(c.GetMessages()); {
	case n == 0:
		return out, rpc.InvalidArgument("conversation.messages", "is empty; give at least one message")
	case n > maxMessages:
		return out, rpc.InvalidArgument("conversation.messages", fmt.Sprintf("%d messages are more than %d", n, maxMessages))
	}
	if n := len(c.GetTools()) + len(c.GetToolsJson()); n > maxTools {
		return out, rpc.InvalidArgument("conversation.tools", fmt.Sprintf("%d tools are more than %d", n, maxTools))
	}
	for i, message := range c.GetMessages() {
		field := fmt.Sprintf("conversation.messages[%d]", i)
		if err := checkMessage(field, message); err != nil {
			return out, err
		}
		out.Messages = append(out.Messages, chat.Message{
			Role: message.GetRole(), Content: message.GetContent(), NoContent: message.GetNoContent(), Reasoning: message.GetReasoningContent(), Name: message.GetName(),
			ToolCalls: structs(message.GetToolCalls()), ToolCallID: message.GetToolCallId(),
		})
	}
	out.Tools = structs(c.GetTools())
	for _, text := range c.GetToolsJson() {
		out.Tools = append(out.Tools, json.RawMessage(text))
	}
	return out, nil
}

func checkMessage(field string, message *inferencev1.Message) error {
	if message.GetRole() == "" {
		return rpc.InvalidArgument(field+".role", "is empty; write system, user, assistant or tool")
	}
	for _, t := range []struct{ name, text string }{
		{"role", message.GetRole()}, {"name", message.GetName()}, {"tool_call_id", message.GetToolCallId()},
	} {
		if len(t.text) > maxNameBytes || !utf8.ValidString(t.text) {
			return rpc.InvalidArgument(field+"."+t.name, fmt.Sprintf("has to be valid UTF-8 of at most %d bytes", maxNameBytes))
		}
	}
	if !utf8.ValidString(message.GetContent()) {
		return rpc.InvalidArgument(field+".content", "is not valid UTF-8")
	}
	if !utf8.ValidString(message.GetReasoningContent()) {
		return rpc.InvalidArgument(field+".reasoning_content", "is not valid UTF-8")
	}
	if message.GetNoContent() && message.GetContent() != "" {
		return rpc.InvalidArgument(field+".no_content", "is true, but there is content: leave one of them out")
	}
	if n := len(message.GetToolCalls()); n > maxToolCalls {
		return rpc.InvalidArgument(field+".tool_calls", fmt.Sprintf("%d calls are more than %d", n, maxToolCalls))
	}
	return nil
}

func structs(list []*structpb.Struct) []any {
	var out []any
	for _, s := range list {
		out = append(out, s.AsMap())
	}
	return out
}
