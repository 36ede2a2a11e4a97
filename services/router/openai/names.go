package openai

import (
	"strconv"
	"strings"
)

// name is the request's name of a field of GenerateRequest.
func (c *parsedRequest) name(field string) string {
	if strings.HasPrefix(field, "structured_output") && c.form != "" {
		return c.form
	}
	if c.response != nil {
		return c.response.name(field, c.limit)
	}
	if c.chat {
		if name, ok := chatNames(field); ok {
			if c.tools != nil && c.tools.old {
				name = oldNames.Replace(name)
			}
			return name
		}
	} else if strings.HasPrefix(field, "token_ids") {
		return "prompt"
	}
	return sharedName(field, c.limit)
}

// sharedName is the name of a field that several kinds of request have.
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

// oldNames are what the names of tools were before.
var oldNames = strings.NewReplacer("tools[", "functions[", ".function.", ".", "tool_choice", "function_call")

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
	case strings.HasPrefix(rest, "tools"), strings.HasPrefix(rest, "tool_choice"), strings.HasPrefix(rest, "messages["):
		return rest, true
	}
	return "messages", true
}

// name is parsedRequest.name for a response.
func (r *response) name(field, limit string) string {
	if field == "logprobs" {
		return "top_logprobs"
	}
	rest, ok := strings.CutPrefix(field, "conversation")
	switch {
	case !ok && (field == "prompt" || strings.HasPrefix(field, "token_ids")):
		return "input"
	case !ok:
		return sharedName(field, limit)
	case strings.HasPrefix(rest, ".template_arguments"):
		return "chat_template_kwargs" + strings.TrimPrefix(rest, ".template_arguments")
	case strings.HasPrefix(rest, ".tools"), strings.HasPrefix(rest, ".tool_choice"):
		return strings.Replace(rest[1:], ".function.", ".", 1)
	}
	number, rest, ok := strings.Cut(strings.TrimPrefix(rest, ".messages["), "]")
	if i, err := strconv.Atoi(number); ok && err == nil && 0 <= i && i < len(r.places) {
		if place := r.places[i]; strings.HasSuffix(place, "]") && (rest == ".content" || rest == ".role") {
			return place + rest
		}
		return r.places[i]
	}
	return "input"
}

// embeddingName is the name that a field of EmbedRequest has in HTTP.
func embeddingName(field string) string {
	if at, is := strings.CutPrefix(field, "inputs"); is {
		at, _, _ = strings.Cut(at, ".")
		return "input" + at
	}
	return sharedName(field, "")
}
