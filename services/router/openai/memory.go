package openai

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// valueBytes is about what a value of JSON takes once it is read, beside its text.
const valueBytes = 256

// held is the part of one request in the memory that requests may take until they are
// admitted, and answers that are sent as a whole until they are. What comes when it is full
// is refused: to wait would hold a connection, and its body, as well. One goroutine at a
// time uses it.
type held struct {
	left  *atomic.Int64 // of the memory of all
	bytes int64
}

// take takes more, if there is as much.
func (h *held) take(bytes int64) bool {
	if h.left.Add(-bytes) < 0 {
		h.left.Add(bytes)
		return false
	}
	h.bytes += bytes
	return true
}

// release gives back what was taken.
func (h *held) release() {
	h.left.Add(h.bytes)
	h.bytes = 0
}

var errFull = errors.New("no memory for the body")

// holding takes memory for what is read, as it comes: a client that announces much and
// sends little holds little.
type holding struct {
	from io.Reader
	held *held
}

func (h *holding) Read(p []byte) (int, error) {
	n, err := h.from.Read(p)
	if !h.held.take(int64(n)) {
		return 0, errFull
	}
	return n, err
}

// full is the refusal of a request for which there is no memory.
func full() error {
	return &Failure{
		Status: http.StatusServiceUnavailable, Type: typeServer, Code: "overloaded", RetryAfter: time.Second,
		Message: "waiting requests and unstreamed answers fill the memory set aside for them; send the request again",
	}
}
