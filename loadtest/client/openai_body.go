package client

import (
	"encoding/json"
	"errors"
	"math"

	"github.com/tandem-serving/tandem/loadtest/workload"
)

// body builds a request's JSON. Members outside OpenAI's API are sent only if needed,
// since many servers reject unknown ones: ignore_eos and min_tokens for Exact, and vLLM's
// priority and cache_salt.
func (s *settings) body(model string, q *workload.Request) ([]byte, error) {
	body := map[string]any{"model": model, "temperature": q.Temperature, "stream": true}
	var err error
	if s.cfg.API == ChatAPI {
		body["messages"], err = messages(q.Prompt)
	} else {
		body["prompt"], err = prompt(q.Prompt)
	}
	if err != nil {
		return nil, err
	}
	if t := float64(q.Temperature); math.IsNaN(t) || math.IsInf(t, 0) {
		return nil, errors.New("the temperature is not a number")
	}
	maxTokens := "max_tokens"
	if s.cfg.MaxCompletionTokens {
		maxTokens = "max_completion_tokens"
	}
	body[maxTokens] = q.MaxTokens
	if q.Temperature > 0 {
		// Some servers have 32-bit seeds.
		body["seed"] = q.Seed & math.MaxInt32
	}
	if q.Exact {
		body["ignore_eos"], body["min_tokens"] = true, q.MaxTokens
	}
	if q.Priority != 0 {
		body["priority"] = q.Priority
	}
	if q.Tenant != "" {
		body["user"] = q.Tenant
	}
	if q.CacheSalt != "" {
		body["cache_salt"] = q.CacheSalt
	}
	options := map[string]bool{"include_usage": true}
	if s.cfg.ContinuousUsage {
		options["continuous_usage_stats"] = true
	}
	body["stream_options"] = options
	for name, value := range s.extra {
		if body[name] = value; string(value) == "null" {
			delete(body, name)
		}
	}
	return json.Marshal(body)
}

// prompt is token ids or text.
func prompt(p workload.Prompt) (any, error) {
	switch {
	case len(p.TokenIDs) > 0:
		return p.TokenIDs, nil
	case p.Text != "":
		return p.Text, nil
	}
	return nil, errors.New("the prompt is empty")
}

// messages of a conversation, or the text as a user message.
func messages(p workload.Prompt) ([]workload.Message, error) {
	switch {
	case len(p.Chat) > 0:
		return p.Chat, nil
	case p.Text != "":
		return []workload.Message{{Role: "user", Content: p.Text}}, nil
	}
	return nil, errors.New("a chat needs text: the prompt has token ids only")
}
