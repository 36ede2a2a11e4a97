package openai

import "strings"

// sharedName is the name of a field that both kinds of request have.
func sharedName(field, limit string) string {
	if name, ok := strings.CutPrefix(field, "sampling."); ok {
		name, _, _ = strings.Cut(name, "[")
		return name
	}
	base, _, _ := strings.Cut(field, "[")
	switch base {
	case "max_tokens":
		return limit
	case "stop", "stop_token_ids":
		return base
	}
	return field
}

// chatNames are the names of a conversation's fields in a chat.
func chatNames(field string) (string, bool) {
	if field == "logprobs" {
		return "top_logprobs", true
	}
	rest, ok := strings.CutPrefix(field, "conversation")
	if !ok {
		return "messages", field == "prompt" || strings.HasPrefix(field, "token_ids")
	}
	rest = strings.TrimPrefix(rest, ".")
	switch {
	case strings.HasPrefix(rest, "template_arguments"):
		return "chat_template_kwargs" + strings.TrimPrefix(rest, "template_arguments"), true
	case strings.HasPrefix(rest, "continue_last_message"):
		return "continue_final_message", true
	case strings.HasPrefix(rest, "tools"), strings.HasPrefix(rest, "messages["):
		return rest, true
	}
	return "messages", true
}
