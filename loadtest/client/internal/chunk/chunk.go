// Package chunk parses the JSON chunks of OpenAI-compatible streams, for completions and
// chats, with the extensions of vLLM, SGLang and others.
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

// Chunk is one parsed chunk. Its choices are merged: requests for several choices get the
// tokens of all.
type Chunk struct {
	// ID is the server's id of the request.
	ID string
	// Choices: there is at least one. The final usage chunk has none.
	Choices bool
	// Text is new output text, Reasoning new text before the answer.
	Text, Reasoning string
	// Other: it carries other output, such as tool calls or a refusal.
	Other bool
	// TokenIDs are the new tokens; nil if the server sends none.
	TokenIDs []uint32
	// FinishReason as sent; empty: not finished.
	FinishReason string
	// Usage so far; nil if absent.
	Usage *Usage
	// Error is set if the chunk reports a failed request.
	Error *Error
}

// Generated reports whether the chunk carries output.
func (c *Chunk) Generated() bool { return c.Text != "" || c.Reasoning != "" || c.Other }

// Usage counts tokens; -1 where the server does not.
type Usage struct {
	Prompt, Completion, Cached int
}

// Error is a server's report of a failed request.
type Error struct {
	// Message is human-readable. Code is often, but not always, an HTTP status. Any may
	// be empty.
	Message, Type, Code string
}

// wire is the parsed part of a chunk; null counts as absent.
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

// Parse parses a chunk.
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
	// Some servers send both during a transition, with the same text.
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

// count converts a token count, -1 if it is absent or invalid.
func count(n *int64) int {
	if n == nil || *n < 0 || *n > math.MaxInt32 {
		return -1
	}
	return int(*n)
}

// ParseError parses an error in a stream or an HTTP error body: OpenAI's {"error":{…}},
// {"error":"…"}, {"object":"error","message":…} and FastAPI's {"detail":…}. It returns
// nil for anything else.
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

// set reports whether a value is present and not empty.
func set(value json.RawMessage) bool {
	switch string(bytes.TrimSpace(value)) {
	case "", "null", `""`, "false":
		return false
	}
	return true
}

// plain formats a value for people: strings without quotes, others as they are.
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
