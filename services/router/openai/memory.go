package openai

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/services/router/serving"
)

// valueBytes is about what a value of JSON takes once it is read, beside its text.
const valueBytes = 256

// What an answer that is sent as a whole takes for each token, and each alternative
// of it, until it is written, about: as values and as JSON, bytes.
const (
	tokenBytes       = 128
	alternativeBytes = 192
)

// echoCopies is how often an echo is held while it is sent: as text, in a message and as JSON, about.
const echoCopies = 3

// echoBytes is what the echoes that are still to be sent take.
func (c *parsedRequest) echoBytes() (bytes int64) {
	for _, echo := range c.echoes {
		bytes += echoCopies * int64(len(echo))
	}
	return bytes
}

// scoredBytes is what tokens take, about, that come with how likely they are.
func scoredBytes(tokens []*inferencev1.TokenLogprobs) (bytes int64) {
	for _, t := range tokens {
		bytes += tokenBytes + alternativeBytes*int64(len(t.GetTop()))
	}
	return bytes
}

// heldMemory is what requests take until they are admitted, and answers that are sent as a whole until they
// are. What comes when it is full is refused: to wait would hold a connection, and its body, as well. The
// requests of a tenant may take half of it together, so that none keeps it from the others; a single one may
// always take more.
type heldMemory struct {
	mu      sync.Mutex
	bytes   int64
	tenants map[string]int64 // of those that have taken some
}

// memoryShare is the part of one request in it. One goroutine at a time uses it.
type memoryShare struct {
	of        *heldMemory
	tenant    string // "": callers are not asked who they are
	all, most int64  // that all requests may take, and the answers of one, or a tenant
	bytes     int64
}

// newShare is a part of the memory, with nothing in it yet, for a request.
func (h *Handler) newShare(e *exchange) *memoryShare {
	return &memoryShare{of: &h.held, tenant: serving.OwnerOf(e.request.Context()), all: h.config.MaxHeldBytes, most: h.mostOfOne()}
}

// mostOfOne is how much of the memory the answers of one request may take, or all that a tenant sends.
func (h *Handler) mostOfOne() int64 { return h.config.MaxHeldBytes / 2 }

// take takes more, if there is as much.
func (m *memoryShare) take(bytes int64) bool {
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	if m.of.bytes+bytes > m.all {
		return false
	}
	if its := m.of.tenants[m.tenant]; m.tenant != "" && its > m.bytes && its+bytes > m.most {
		return false
	}
	m.add(bytes)
	return true
}

// give gives back a part of what was taken.
func (m *memoryShare) give(bytes int64) {
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	m.add(-bytes)
}

// add adds to what is taken. Its caller holds the lock.
func (m *memoryShare) add(bytes int64) {
	m.bytes += bytes
	m.of.bytes += bytes
	if m.tenant == "" {
		return
	}
	if m.of.tenants[m.tenant] += bytes; m.of.tenants[m.tenant] == 0 {
		delete(m.of.tenants, m.tenant)
	}
}

// release gives back what was taken.
func (m *memoryShare) release() {
	m.give(m.bytes)
}

var errFull = errors.New("no memory for the body")

// countingReader takes memory for what is read, as it comes: a client that announces much and
// sends little holds little.
type countingReader struct {
	from   io.Reader
	memory *memoryShare
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if !r.memory.take(int64(n)) {
		return 0, errFull
	}
	return n, err
}

// footprint is what the answers of a request take at most for how likely tokens are, and for prompts.
type footprint struct{ prompts, answers int64 }

// add adds the answers to one prompt, with an echo of so many bytes.
func (t *footprint) add(c *parsedRequest, q *inferencev1.GenerateRequest, plan Plan, echo int) {
	whole := !c.stream || c.response != nil // the last events of a streamed response have all of it
	if q.PromptLogprobs != nil {
		times := 1
		if whole && !c.chat {
			times += c.shown // each choice says it again
		}
		t.prompts += int64(times*len(plan.Prompt)) * (tokenBytes + alternativeBytes*int64(q.GetPromptLogprobs()))
	}
	times := 1
	if whole {
		times = c.shown
	}
	t.prompts += echoCopies * int64(times*echo)
	if whole && q.MaxTokens != nil {
		t.answers += int64(c.n*plan.MaxTokens) * c.scoredToken()
	}
}

// scoredToken is what a token of an answer takes for how likely it is.
func (c *parsedRequest) scoredToken() int64 {
	if !c.logprobs || c.empty {
		return 0
	}
	return tokenBytes + alternativeBytes*int64(c.top)
}

// fits reports whether answers fit into the memory that those of one request may take.
func (h *Handler) fits(t footprint) bool { return t.prompts+t.answers <= h.mostOfOne() }

// tooLarge refuses a request whose answers take more than those of one may. To send it again does not
// help. prompt: what they say of prompts does.
func (c *parsedRequest) tooLarge(prompt bool) error {
	field := c.limit
	switch {
	case prompt && c.promptTop != nil:
		field = "prompt_logprobs"
	case prompt:
		field = "echo"
	case c.logprobs && c.top > 0:
		field = c.name("logprobs")
	case c.n > 1:
		field = "n"
	}
	return invalid(field, "the answer can take more memory than this server sets aside for one: ask for fewer alternatives, answers or tokens, or shorten the prompt")
}

// full is the refusal of a request for which there is no memory.
func full() error {
	return &Failure{
		Status: http.StatusServiceUnavailable, Type: typeServer, Code: "overloaded", RetryAfter: time.Second,
		Message: "waiting requests and unstreamed answers fill the memory set aside for them, or the half of it that one tenant may take; send the request again",
	}
}
