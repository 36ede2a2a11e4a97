package fakeserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
)

// openAIRequest is the body of a completion or chat. Unused members are listed so that
// they are known.
type openAIRequest struct {
	Model               string          `json:"model"`
	Prompt              json.RawMessage `json:"prompt"`
	Messages            []chatMessage   `json:"messages"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	Stream              bool            `json:"stream"`
	StreamOptions       *streamOptions  `json:"stream_options"`
	N                   *int            `json:"n"`
	Temperature         *float64        `json:"temperature"`
	TopP                *float64        `json:"top_p"`
	Seed                *int64          `json:"seed"`
	Stop                json.RawMessage `json:"stop"`
	User                string          `json:"user"`
	FrequencyPenalty    *float64        `json:"frequency_penalty"`
	PresencePenalty     *float64        `json:"presence_penalty"`

	vllmMembers
}

type vllmMembers struct {
	IgnoreEOS      *bool   `json:"ignore_eos"`
	MinTokens      *int    `json:"min_tokens"`
	Priority       *int    `json:"priority"`
	CacheSalt      *string `json:"cache_salt"`
	ReturnTokenIDs *bool   `json:"return_token_ids"`
}

type chatMessage struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

type streamOptions struct {
	IncludeUsage    bool  `json:"include_usage"`
	ContinuousUsage *bool `json:"continuous_usage_stats"`
}

// parse decodes and checks a body. The error is for the client, with status 400, or 404
// for an unknown model.
func (s *OpenAIServer) parse(r *http.Request, chat bool) (q *openAIRequest, prompt int, status int, err error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBodyBytes+1))
	if err != nil || len(body) > maxBodyBytes {
		return nil, 0, http.StatusBadRequest, errors.New("the body could not be read, or is too large")
	}
	q = new(openAIRequest)
	strict := json.NewDecoder(bytes.NewReader(body))
	if s.options.Dialect == DialectOpenAI {
		strict.DisallowUnknownFields()
	}
	if err := strict.Decode(q); err != nil {
		return nil, 0, http.StatusBadRequest, fmt.Errorf("we could not parse the JSON body of your request: %w", err)
	}
	if q.Model != Model {
		return nil, 0, http.StatusNotFound, fmt.Errorf("the model `%s` does not exist", q.Model)
	}
	if s.options.Dialect == DialectOpenAI && (q.vllmMembers != vllmMembers{} || q.StreamOptions != nil && q.StreamOptions.ContinuousUsage != nil) {
		return nil, 0, http.StatusBadRequest, errors.New("unrecognized request argument supplied")
	}
	if q.StreamOptions != nil && !q.Stream {
		return nil, 0, http.StatusBadRequest, errors.New("the 'stream_options' parameter is only allowed when 'stream' is enabled")
	}
	if q.N != nil && *q.N != 1 {
		return nil, 0, http.StatusBadRequest, errors.New("the fake server gives one choice")
	}
	if chat {
		prompt, err = chatTokens(q)
	} else {
		prompt, err = promptTokens(q.Prompt)
	}
	if err == nil && (q.tokens() < 1 || prompt+q.tokens() > contextTokens) {
		err = fmt.Errorf("this model's maximum context length is %d tokens; you asked for %d, %d of them in the completion", contextTokens, prompt+q.tokens(), q.tokens())
	}
	return q, prompt, http.StatusBadRequest, err
}

// tokens is the output length requested.
func (q *openAIRequest) tokens() int {
	switch {
	case q.MaxCompletionTokens != nil:
		return *q.MaxCompletionTokens
	case q.MaxTokens != nil:
		return *q.MaxTokens
	}
	return defaultTokens
}

// textTokens is the assumed number of tokens of a text.
func textTokens(bytes int) int { return 1 + bytes/4 }

var roles = []string{"system", "developer", "user", "assistant", "tool"}

func chatTokens(q *openAIRequest) (int, error) {
	if len(q.Messages) == 0 || q.Prompt != nil {
		return 0, errors.New("a chat needs 'messages', and no 'prompt'")
	}
	size := 0
	for i, m := range q.Messages {
		if !slices.Contains(roles, m.Role) {
			return 0, fmt.Errorf("'%s' is not one of the roles: 'messages.%d.role'", m.Role, i)
		}
		size += len(m.Content)
	}
	return textTokens(size), nil
}

// promptTokens counts a prompt's tokens: a string, token ids, or a list of either.
func promptTokens(prompt json.RawMessage) (int, error) {
	var (
		text  string
		ids   []uint32
		texts []string
		lists [][]uint32
	)
	switch {
	case len(prompt) == 0 || string(prompt) == "null":
	case json.Unmarshal(prompt, &text) == nil:
		return textTokens(len(text)), nil
	case json.Unmarshal(prompt, &ids) == nil && len(ids) > 0:
		return len(ids), nil
	case json.Unmarshal(prompt, &texts) == nil && len(texts) == 1:
		return textTokens(len(texts[0])), nil
	case json.Unmarshal(prompt, &lists) == nil && len(lists) == 1 && len(lists[0]) > 0:
		return len(lists[0]), nil
	}
	return 0, errors.New("'prompt' must be a string, or a list of token ids, or a list of one of these")
}
