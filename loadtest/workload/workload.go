// Package workload says what a load generator sends and when: arrival processes,
// lengths, prompts, conversations, and traces of real services.
//
// Anything may import it. It starts no goroutines and reads no clock; all chance
// comes from a seed, so that a run can be repeated.
package workload

import "time"

// Source gives the requests of a run. It is used by one goroutine.
type Source interface {
	// Next is the request after the last, io.EOF at the end. Due never decreases.
	// An error other than io.EOF ends the run.
	Next() (*Request, error)
}

// Request is one thing to send. Whoever got it from a Source owns it.
type Request struct {
	// Due is when to send it, since the start of the run. In closed loop 0.
	Due time.Duration
	// Session and Turn place it in a conversation; both count from 0.
	Session, Turn int
	// Class is the request's class for SLOs; empty: the only one.
	Class string
	// Prompt is what to continue.
	Prompt Prompt
	// MaxTokens is the number of tokens wanted.
	MaxTokens int
	// Exact: generate MaxTokens even if the model would stop before.
	Exact bool
	// Temperature and Seed of the sampling.
	Temperature float32
	Seed        uint64
	// Priority, Tenant and CacheSalt go with the request where the server knows them.
	Priority          int32
	Tenant, CacheSalt string

	// Then makes the next turn of the conversation from the answer to this one, and
	// says how long its user thinks before it is due; nil, or a nil request: this was
	// the last. It may be called from any goroutine, once, and needs the Prompt's
	// contents as they were. Due of the next request is for the caller to set.
	Then func(answer Answer) (next *Request, think time.Duration)
}

// Prompt is token ids or text, whichever is set. Chat holds a conversation for
// servers that take one; Text is then the same in one piece.
type Prompt struct {
	TokenIDs []uint32
	Text     string
	Chat     []Message
}

// Message is one turn of a conversation, in JSON as OpenAI's API has it.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Answer is what a server said.
type Answer struct {
	TokenIDs []uint32
	Text     string
}
