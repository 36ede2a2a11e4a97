package client

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"

	"github.com/tandem-serving/tandem/loadtest/workload"
)

// body is a request's JSON. Members that are no part of OpenAI's API go along only
// if the request needs them, since many servers refuse what they do not know:
// ignore_eos and min_tokens for Exact, priority and cache_salt, which are vLLM's.
func (s *settings) body(model string, q *workload.Request) ([]byte, error) {
	b := &bodyWriter{extra: s.extra, out: make([]byte, 0, 512+8*len(q.Prompt.TokenIDs)+len(q.Prompt.Text))}
	b.text("model", model)
	prompt := b.prompt
	if s.cfg.API == ChatAPI {
		prompt = b.messages
	}
	if err := prompt(q.Prompt); err != nil {
		return nil, err
	}
	maxTokens := "max_tokens"
	if s.cfg.MaxCompletionTokens {
		maxTokens = "max_completion_tokens"
	}
	b.number(maxTokens, int64(q.MaxTokens))
	if t := float64(q.Temperature); math.IsNaN(t) || math.IsInf(t, 0) {
		return nil, errors.New("the temperature is not a number")
	}
	if b.member("temperature") {
		b.out = strconv.AppendFloat(b.out, float64(q.Temperature), 'f', -1, 32)
	}
	if q.Temperature > 0 {
		// Some servers keep seeds in 32 bits.
		b.number("seed", int64(q.Seed&math.MaxInt32))
	}
	if q.Exact {
		b.raw("ignore_eos", "true")
		b.number("min_tokens", int64(q.MaxTokens))
	}
	if q.Priority != 0 {
		b.number("priority", int64(q.Priority))
	}
	if q.Tenant != "" {
		b.text("user", q.Tenant)
	}
	if q.CacheSalt != "" {
		b.text("cache_salt", q.CacheSalt)
	}
	b.raw("stream", "true")
	options := `{"include_usage":true}`
	if s.cfg.ContinuousUsage {
		options = `{"include_usage":true,"continuous_usage_stats":true}`
	}
	b.raw("stream_options", options)
	for _, name := range s.names {
		if value := s.extra[name]; string(value) != "null" {
			b.key(name)
			b.out = append(b.out, value...)
		}
	}
	return append(b.out, '}'), nil
}

// bodyWriter writes a JSON object, but for the members in extra.
type bodyWriter struct {
	out   []byte
	extra map[string]json.RawMessage
}

func (b *bodyWriter) key(name string) {
	before := byte(',')
	if len(b.out) == 0 {
		before = '{'
	}
	b.out = append(appendText(append(b.out, before), name), ':')
}

// member begins a member; false: it is not to be written.
func (b *bodyWriter) member(name string) bool {
	if _, ok := b.extra[name]; ok {
		return false
	}
	b.key(name)
	return true
}

func (b *bodyWriter) raw(name, value string) {
	if b.member(name) {
		b.out = append(b.out, value...)
	}
}

func (b *bodyWriter) text(name, value string) {
	if b.member(name) {
		b.out = appendText(b.out, value)
	}
}

func (b *bodyWriter) number(name string, value int64) {
	if b.member(name) {
		b.out = strconv.AppendInt(b.out, value, 10)
	}
}

func (b *bodyWriter) prompt(p workload.Prompt) error {
	b.key("prompt")
	switch {
	case len(p.TokenIDs) > 0:
		b.out = append(b.out, '[')
		for i, id := range p.TokenIDs {
			if i > 0 {
				b.out = append(b.out, ',')
			}
			b.out = strconv.AppendUint(b.out, uint64(id), 10)
		}
		b.out = append(b.out, ']')
	case p.Text != "":
		b.out = appendText(b.out, p.Text)
	default:
		return errors.New("the prompt is empty")
	}
	return nil
}

func (b *bodyWriter) messages(p workload.Prompt) error {
	messages := p.Chat
	if len(messages) == 0 {
		if p.Text == "" {
			return errors.New("a chat needs text: the prompt has token ids only")
		}
		messages = []workload.Message{{Role: "user", Content: p.Text}}
	}
	b.key("messages")
	b.out = append(b.out, '[')
	for i, m := range messages {
		if i > 0 {
			b.out = append(b.out, ',')
		}
		b.out = append(appendText(append(b.out, `{"role":`...), m.Role), `,"content":`...)
		b.out = append(appendText(b.out, m.Content), '}')
	}
	b.out = append(b.out, ']')
	return nil
}

// appendText appends a JSON string.
func appendText(b []byte, text string) []byte {
	quoted, _ := json.Marshal(text) // strings are always marshalled
	return append(b, quoted...)
}
