// Package workload determines what a load generator sends and when: arrival processes,
// lengths, prompts, conversations, and traces of real services.
//
// Anything may import it. It starts no goroutines and reads no clock. All randomness
// comes from a seed, so that runs are repeatable.
package workload

import "time"

// Source generates a run's requests. Not for concurrent use.
type Source interface {
	// Next returns the next request, or io.EOF at the end. Due never decreases. Any other
	// error ends the run.
	Next() (*Request, error)
}

// FailedPause is how long a place stays empty in closed loop after a failed or refused
// request. Without it, a server that refuses at once would be flooded.
const FailedPause = 100 * time.Millisecond

// Request is one request, owned by the caller that got it from a Source.
type Request struct {
	// Due is when to send it, since the start of the run. 0 in closed loop.
	Due time.Duration
	// Session and Turn locate it in a conversation, from 0.
	Session, Turn int
	// Class for SLOs; empty: the only one.
	Class string
	// Prompt to continue.
	Prompt Prompt
	// MaxTokens is the requested output length.
	MaxTokens int
	// Exact: generate MaxTokens even if the model would stop earlier.
	Exact bool
	// Temperature and Seed of the sampling.
	Temperature float32
	Seed        uint64
	// Priority, Tenant and CacheSalt are sent if the server supports them.
	Priority          int32
	Tenant, CacheSalt string

	// Then makes the conversation's next turn from the answer to this one, and returns
	// the user's think time before it; nil, or a nil request: this was the last. Call it
	// at most once, from any goroutine, with Prompt's contents unchanged. The caller sets
	// the next request's Due.
	Then func(answer Answer) (next *Request, think time.Duration)
}

// Prompt is token ids or text, whichever is set. Chat is a conversation for servers that
// accept one; Text is then the same, flattened.
type Prompt struct {
	TokenIDs []uint32
	Text     string
	Chat     []Message
}

// bytesPerToken is about what a token of text takes.
const bytesPerToken = 4

// Length is about how many tokens it has: exactly as many, if it has token ids.
func (p *Prompt) Length() int {
	if len(p.TokenIDs) > 0 {
		return len(p.TokenIDs)
	}
	return len(p.Text) / bytesPerToken
}

// Message is one message of a conversation, in OpenAI's JSON.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Answer is a server's response.
type Answer struct {
	TokenIDs []uint32
	Text     string
}
