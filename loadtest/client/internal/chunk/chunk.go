// Package chunk parses the JSON chunks that servers with OpenAI's API stream, for
// completions and for chats, with what vLLM, SGLang and others add.
//
// Package client imports it. It starts no goroutines and reads no clock.
package chunk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
)

// Chunk is what one chunk says. Choices are taken together: who asks for several
// gets the tokens of all.
type Chunk struct {
	// ID is the server's id of the request.
	ID string
	// Choices: there is at least one; usage comes in a chunk without at the end.
	Choices bool
	// Text is new text of the answer. Reasoning is new text before the answer.
	Text, Reasoning string
	// Other: it carries something generated that is neither: tool calls, a refusal.
	Other bool
	// TokenIDs are the new tokens; nil if the server does not send ids.
	TokenIDs []uint32
	// FinishReason is the server's word; empty: it goes on.
	FinishReason string
	// Usage is the count of tokens so far; nil if the chunk has none.
	Usage *Usage
	// Error is set if the chunk is not a chunk but says that the request failed.
	Error *Error
}

// Generated reports whether the chunk shows something generated.
func (c *Chunk) Generated() bool { return c.Text != "" || c.Reasoning != "" || c.Other }

// Usage counts tokens; -1 where the server does not.
type Usage struct {
	Prompt, Completion, Cached int
}

// Error is what a server says of a request that failed.
type Error struct {
	// Message is for people. Type and Code are the server's; Code is often, but not
	// always, an HTTP status. Each may be empty.
	Message, Type, Code string
}

// wire has what is read of a chunk; null and absent are the same.
type wire struct {
	ID      string   `json:"id"`
	Choices []choice `json:"choices"`
	Usage   *struct {
		PromptTokens     *int64 `json:"prompt_tokens"`
		CompletionTokens *int64 `json:"completion_tokens"`
		PromptDetails    *struct {
			CachedTokens *int64 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

type choice struct {
	Text  string `json:"text"`
	Delta struct {
		Content          string            `json:"content"`
		ReasoningContent string            `json:"reasoning_content"`
		Reasoning        string            `json:"reasoning"`
		Refusal          string            `json:"refusal"`
		ToolCalls        []json.RawMessage `json:"tool_calls"`
	} `json:"delta"`
	FinishReason string   `json:"finish_reason"`
	TokenIDs     []uint32 `json:"token_ids"`
}

// Parse reads a chunk. Its errors say in what it is not one.
func Parse(data []byte) (Chunk, error) {
	var w wire
	if err := json.Unmarshal(data, &w); err != nil {
		return Chunk{}, fmt.Errorf("chunk is not of OpenAI's form: %w", err)
	}
	if set(w.Error) || w.Choices == nil {
		if e := ParseError(data); e != nil {
			return Chunk{ID: w.ID, Error: e}, nil
		}
	}
	if w.Choices == nil && w.Usage == nil {
		return Chunk{}, errors.New("chunk is not of OpenAI's form: it has neither choices nor usage")
	}
	c := Chunk{ID: w.ID, Choices: len(w.Choices) > 0}
	for i := range w.Choices {
		c.add(&w.Choices[i])
	}
	if w.Usage != nil {
		c.Usage = &Usage{Prompt: count(w.Usage.PromptTokens), Completion: count(w.Usage.CompletionTokens), Cached: -1}
		if w.Usage.PromptDetails != nil {
			c.Usage.Cached = count(w.Usage.PromptDetails.CachedTokens)
		}
	}
	return c, nil
}

func (c *Chunk) add(from *choice) {
	c.Text += from.Text + from.Delta.Content
	// Some servers send both for a while, with the same text.
	if from.Delta.ReasoningContent != "" {
		c.Reasoning += from.Delta.ReasoningContent
	} else {
		c.Reasoning += from.Delta.Reasoning
	}
	if from.Delta.Refusal != "" || len(from.Delta.ToolCalls) > 0 {
		c.Other = true
	}
	if from.FinishReason != "" {
		c.FinishReason = from.FinishReason
	}
	if from.TokenIDs != nil {
		c.TokenIDs = append(c.TokenIDs, from.TokenIDs...)
	}
}

// count is a number of tokens, -1 if it is none or none that can be.
func count(n *int64) int {
	if n == nil || *n < 0 || *n > math.MaxInt32 {
		return -1
	}
	return int(*n)
}

// ParseError reads what servers send of a request that failed, in a stream or as
// the body of an HTTP error: OpenAI's {"error":{…}}, {"error":"…"},
// {"object":"error","message":…} and {"detail":…}, which is FastAPI's. It is nil
// if data is none of these.
func ParseError(data []byte) *Error {
	var w struct {
		Object  string          `json:"object"`
		Error   json.RawMessage `json:"error"`
		Message json.RawMessage `json:"message"`
		Type    json.RawMessage `json:"type"`
		Code    json.RawMessage `json:"code"`
		Detail  json.RawMessage `json:"detail"`
		Choices json.RawMessage `json:"choices"`
	}
	if err := json.Unmarshal(data, &w); err != nil {
		return nil
	}
	switch {
	case set(w.Error):
		e := w.Error
		w.Message, w.Type, w.Code = nil, nil, nil
		if err := json.Unmarshal(e, &w); err != nil || !set(w.Message) {
			w.Message = e
		}
		return &Error{Message: plain(w.Message), Type: plain(w.Type), Code: plain(w.Code)}
	case w.Object == "error" && !set(w.Choices):
		return &Error{Message: plain(w.Message), Type: plain(w.Type), Code: plain(w.Code)}
	case set(w.Detail) && !set(w.Choices):
		return &Error{Message: plain(w.Detail)}
	}
	return nil
}

// set reports whether a value is there and says something.
func set(value json.RawMessage) bool {
	switch string(bytes.TrimSpace(value)) {
	case "", "null", `""`, "false":
		return false
	}
	return true
}

// plain is a value for people: a string without its quotes, else as it stands.
func plain(value json.RawMessage) string {
	if !set(value) {
		return ""
	}
	var text string
	if err := json.Unmarshal(value, &text); err == nil {
		return text
	}
	return strings.TrimSpace(string(value))
}
