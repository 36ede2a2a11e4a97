package openai

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pkg/quota"
	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// assembled serves requests of a kind by a function of what they ask for.
func (h *Handler) assembled(k *kind, serve func(*assembly) error) func(*exchange) error {
	return func(e *exchange) error {
		memory := h.newShare(e)
		defer memory.release()
		a, err := h.assembly(e, k, memory)
		if err != nil {
			return err
		}
		return serve(a)
	}
}

// generate serves a completion or a chat.
func (h *Handler) generate(a *assembly) error {
	request := a.exchange.request
	if id := request.Header.Get(headerLastEventID); id != "" {
		a.parsed.echoes, a.parsed.echoTop = nil, nil // the client has them
		a.admitted()                                 // they were begun
		return h.resume(request.Context(), &stream{assembly: a}, id)
	}
	if a.parsed.stream {
		return h.stream(a)
	}
	return h.whole(a)
}

// whole serves one in a single piece.
func (h *Handler) whole(a *assembly) error {
	if err := h.run(a, a.collect, nil); err != nil {
		return err
	}
	if err := a.keepPrompts(); err != nil {
		return err
	}
	return a.exchange.reply(http.StatusOK, a.whole())
}

// stream serves one piece by piece.
func (h *Handler) stream(a *assembly) error {
	s := newStream(a)
	if err := h.run(a, s.receive, s.sendNow()); err != nil {
		return err
	}
	return s.finish()
}

// assembly reads what is asked for.
func (h *Handler) assembly(e *exchange, k *kind, memory *memoryShare) (*assembly, error) {
	// Before the body is read.
	over := func(ctx context.Context) error { return e.limits.Check(ctx, quota.Need{}, "") }
	if e.request.Header.Get(headerLastEventID) != "" && (k == h.chats || k == h.completions) { // the others cannot be resumed
		over = e.limits.CheckResume
	}
	if err := over(e.request.Context()); err != nil {
		return nil, err
	}
	body, err := h.body(e, memory)
	if err != nil {
		return nil, err
	}
	f, err := parse(body)
	if err != nil {
		return nil, err
	}
	k.ignore(f)
	e.ignored = &f.ignored
	c, err := k.parse(f)
	if err != nil {
		return nil, err
	}
	if err := c.want(e.request.Header.Get(headerSLO)); err != nil {
		return nil, err
	}
	if c.secret, err = secretOf(e.request.Header); err != nil {
		return nil, err
	}
	// The body's own memory is one of the copies of an echo that is a text.
	if !memory.take(valueBytes*int64(c.verbatim) + c.echoBytes()*(echoCopies-1)/echoCopies) {
		return nil, full()
	}
	return &assembly{memory: memory, parsed: c, exchange: e, created: e.arrived.Unix(), answers: make([]progress, len(c.choices))}, nil
}

// admitted lets go of the requests: once one is admitted all are queued, their prompts are in tokens,
// and the rest is not needed. Echoes are, until they are sent.
func (a *assembly) admitted() {
	if a.parsed.choices == nil {
		return // an answer before this one was
	}
	a.parsed.choices, a.parsed.planned = nil, nil
	a.memory.give(a.memory.bytes - a.parsed.echoBytes())
}

// maxBodyBytes bounds a body.
const maxBodyBytes = 8 << 20

// body reads a request's body, and to its end, without which net/http would not
// notice that the client leaves.
func (h *Handler) body(e *exchange, memory *memoryShare) ([]byte, error) {
	if encoding := strings.Join(e.request.Header.Values("Content-Encoding"), ", "); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return nil, &Failure{
			Status: http.StatusUnsupportedMediaType, Type: typeInvalid, Code: "unsupported_encoding",
			Message: fmt.Sprintf("the Content-Encoding %q is not supported: send the body as it is, without this header", clienterr.Shorten(encoding)),
		}
	}
	if err := e.SetReadDeadline(time.Now().Add(h.config.ReadTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, err
	}
	e.bodied = true
	body, err := io.ReadAll(&countingReader{from: http.MaxBytesReader(e.writer, e.request.Body, maxBodyBytes), memory: memory})
	tooLong, isTooLong := errors.AsType[*http.MaxBytesError](err)
	switch {
	case isTooLong:
		return nil, &Failure{
			Status: http.StatusRequestEntityTooLarge, Type: typeInvalid, Code: "request_too_large",
			Message: "the body is longer than " + strconv.FormatInt(tooLong.Limit, 10) + " bytes",
		}
	case errors.Is(err, errFull):
		return nil, full()
	case errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.ErrUnexpectedEOF) || e.request.Context().Err() != nil:
		return nil, &Failure{Status: http.StatusRequestTimeout, Type: typeInvalid, Code: "incomplete_body", Message: "the body did not arrive completely in time"}
	case err != nil:
		return nil, &Failure{Status: http.StatusBadRequest, Type: typeInvalid, Code: "invalid_body", Message: "the body cannot be read: " + err.Error()}
	}
	if err := e.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, err
	}
	if m := measure(body); !memory.take(valueBytes * int64(m.nests+m.members)) {
		return nil, full()
	}
	return body, nil
}
