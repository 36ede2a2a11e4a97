package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/pkg/api"
)

// exchange is an HTTP request and its answer.
type exchange struct {
	*http.ResponseController
	writer        http.ResponseWriter
	request       *http.Request
	arrived       time.Time
	route         string
	serve         func(*exchange) error
	id            string
	secret        string // of the accepted requests; "" before that
	counted       bool   // as a request, by the backend
	bodied        bool   // its body is or was being read
	timeout       time.Duration
	deadlineSetAt time.Time // when the write deadline was last moved
	status        int       // of the answer; 0 before it begins
	events        bool      // the answer is a stream of events
	ignored       *ignored  // members of the request that have no effect; nil: it has none
	failed        *Failure
	// lastWords sends an error as the last event of a stream; nil: the error object goes as it
	// is.
	lastWords func(*Failure) error
	limits    Limits // of who calls
}

// marshal is json.Marshal without escaping <, > and &.
func marshal(value any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'}), nil
}

// headerSecret returns the secret that proves who made the request.
const headerSecret = "X-Tandem-Secret"

// headerIgnored lists the members of the request that were ignored.
const headerIgnored = "X-Tandem-Ignored"

// begin sends the headers, and moves the write deadline.
func (e *exchange) begin(status int, contentType string) error {
	if err := e.extendWriteDeadline(); err != nil {
		return err
	}
	e.status = status
	header := e.writer.Header()
	header.Set("Content-Type", contentType)
	header.Set(api.HeaderRequestID, e.id)
	if e.secret != "" {
		header.Set(headerSecret, e.secret)
	}
	if e.ignored != nil && len(*e.ignored) > 0 {
		header.Set(headerIgnored, e.ignored.String())
	}
	e.limits.SetHeaders(e.request.Context(), header)
	header.Set("Openai-Processing-Ms", strconv.FormatInt(time.Since(e.arrived).Milliseconds(), 10))
	header.Set("X-Content-Type-Options", "nosniff")
	e.writer.WriteHeader(status)
	return nil
}

// reply sends a whole answer.
func (e *exchange) reply(status int, value any) error {
	body, err := marshal(value)
	if err != nil {
		return err
	}
	return e.send(status, append(body, '\n'))
}

// send sends a whole answer that is encoded already.
func (e *exchange) send(status int, body []byte) error {
	e.writer.Header().Set("Content-Length", strconv.Itoa(len(body)))
	if err := e.begin(status, "application/json"); err != nil {
		return err
	}
	return e.write(body)
}

const (
	// pieceBytes is how much is written at a time: a client that reads slowly has the write timeout
	// for each.
	pieceBytes = 64 << 10
	// leastRate is how fast a client has to read a long answer, bytes a second, beside one write
	// timeout: until all is written, the answer keeps its part of the memory from other requests.
	// Clients on any usual connection are faster, and short answers need only the timeout.
	leastRate = 64 << 10
)

// write writes what follows the headers.
func (e *exchange) write(body []byte) error {
	begun, atLeastRate := time.Now(), time.Duration(len(body))*time.Second/leastRate
	for at := 0; at < len(body); at += pieceBytes {
		// After so long the deadline stays where it is, at most one timeout later.
		if at == 0 || time.Since(begun) < atLeastRate {
			if err := e.extendIfDue(); err != nil {
				return err
			}
		}
		if _, err := e.writer.Write(body[at:min(at+pieceBytes, len(body))]); err != nil {
			return left(err)
		}
	}
	return nil
}

// eventStream is the content type of a stream of events.
const eventStream = "text/event-stream; charset=utf-8"

// deadlineShare is the share of the write timeout by which a stream's deadline may be too early:
// moving the deadline costs as much as writing an event.
const deadlineShare = 30

// extendWriteDeadline gives the client a whole write timeout from now: one that does not read holds
// nothing for long.
func (e *exchange) extendWriteDeadline() error {
	e.deadlineSetAt = time.Now()
	if err := e.SetWriteDeadline(e.deadlineSetAt.Add(e.timeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return left(err)
	}
	return nil
}

// left is the error of a client that is gone or does not read.
func left(err error) error {
	return &Failure{Status: statusClientGone, Message: err.Error(), Type: typeInvalid, Code: "client_gone"}
}

// open sends the headers of a stream, once.
func (e *exchange) open() error {
	if e.status != 0 {
		return nil
	}
	e.events = true
	header := e.writer.Header()
	header.Set("Cache-Control", "no-cache")
	header.Set("X-Accel-Buffering", "no") // nginx would collect the events
	if err := e.begin(http.StatusOK, eventStream); err != nil {
		return err
	}
	return e.flush()
}

// line sends one encoded event of a stream.
func (e *exchange) line(line []byte) error {
	if err := e.open(); err != nil {
		return err
	}
	if err := e.write(line); err != nil {
		return err
	}
	return e.flush()
}

// lineNow is line without waiting, for an open stream. It bypasses net/http, whose buffers are
// empty since each event is flushed: net/http would write the same chunk, in a fifth more time.
func (e *exchange) lineNow(c *conn, chunk []byte) error {
	if err := e.extendIfDue(); err != nil {
		return err
	}
	if err := c.sendNow(chunk); err != nil {
		return left(err)
	}
	return nil
}

// extendIfDue is extendWriteDeadline for a further event of a stream, or a further piece of an answer,
// unless that was done a moment ago.
func (e *exchange) extendIfDue() error {
	if time.Since(e.deadlineSetAt) < e.timeout/deadlineShare {
		return nil
	}
	return e.extendWriteDeadline()
}

// rest sends the rest of an event.
func (e *exchange) rest(c *conn) error {
	for c.kept() {
		if err := e.extendIfDue(); err != nil {
			return err
		}
		if err := c.flush(pieceBytes); err != nil {
			return left(err)
		}
	}
	return nil
}

func (e *exchange) flush() error {
	if err := e.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return left(err)
	}
	return nil
}

// fail answers with an error, in a stream that has begun as its last event.
func (e *exchange) fail(err error) {
	if e.failed != nil {
		return
	}
	e.failed = FailureOf(err)
	begun := e.status != 0
	e.status = e.failed.Status // for the log: a stream has sent its 200 already
	switch {
	case !begun:
		e.failed.setRetry(e.writer.Header())
		if e.failed.Status == http.StatusUnauthorized {
			e.writer.Header().Set("Www-Authenticate", "Bearer")
		}
		if e.reply(e.failed.Status, e.failed.body()) != nil {
			e.status = statusClientGone
		}
	case e.status == statusClientGone: // the client is gone
	case e.events && e.lastWords != nil:
		_ = e.lastWords(e.failed)
	case e.events:
		if body, err := marshal(e.failed.body()); err == nil {
			_ = e.line(append(append([]byte("data: "), body...), "\n\n"...)) // if this fails, the client is gone too
		}
	}
}
