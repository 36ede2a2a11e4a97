package openai

import (
	"cmp"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// generate serves a completion or a chat.
func (h *Handler) generate(e *exchange, k *kind) error {
	held := &held{left: &h.left}
	defer held.release()
	body, err := h.body(e, held)
	if err != nil {
		return err
	}
	f, err := parse(body)
	if err != nil {
		return err
	}
	e.ignored = k.ignored(f)
	c, err := k.parse(f)
	if err != nil {
		return err
	}
	if err := c.want(e.request.Header.Get(headerSLO)); err != nil {
		return err
	}
	if c.secret, err = secretOf(e.request.Header); err != nil {
		return err
	}
	if !held.take(valueBytes * int64(c.verbatim)) {
		return full()
	}
	a := &assembly{held: held, call: c, exchange: e, created: e.arrived.Unix(), answers: make([]progress, len(c.choices))}
	// Once a request is admitted its prompt is in tokens, and the rest is not needed.
	admitted := func(to receive) receive {
		return func(index int, event *inferencev1.GenerateEvent) error {
			if event.GetAccepted() != nil {
				c.choices = nil
				held.release()
			}
			return to(index, event)
		}
	}
	if id := e.request.Header.Get(headerLastEventID); id != "" {
		c.choices = nil // they were begun
		held.release()
		return h.resume(e.request.Context(), &stream{assembly: a}, id)
	}
	if c.stream {
		s := &stream{assembly: a}
		if e.request.ProtoAtLeast(1, 1) { // before, there were no chunks
			s.now = connOf(e.request.Context())
		}
		if err := h.run(e.request.Context(), c, admitted(s.receive), s.sendNow()); err != nil {
			return rename(err, c.name)
		}
		return s.finish()
	}
	// The backend takes whatever ends the events for a client that is gone.
	var unkept error
	if err := h.run(e.request.Context(), c, admitted(func(index int, event *inferencev1.GenerateEvent) error {
		unkept = a.collect(index, event)
		return unkept
	}), nil); err != nil {
		return rename(cmp.Or(unkept, err), c.name)
	}
	return e.reply(http.StatusOK, a.whole())
}

// body reads a request's body, and to its end, without which net/http would not
// notice that the client leaves.
func (h *Handler) body(e *exchange, held *held) ([]byte, error) {
	if err := e.SetReadDeadline(time.Now().Add(h.config.ReadTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, err
	}
	body, err := io.ReadAll(&holding{from: http.MaxBytesReader(e.writer, e.request.Body, h.config.MaxBodyBytes), held: held})
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
	if m := measure(body); !held.take(valueBytes * int64(m.nests+m.members)) {
		return nil, full()
	}
	return body, nil
}
