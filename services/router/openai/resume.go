package openai

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// headerLastEventID names the last event that a client has of a stream that broke.
const headerLastEventID = "Last-Event-ID"

// place is where an event is in the stream of a request: after so many tokens, and as which
// of the events that follow the last one.
type place struct {
	tokens uint64
	end    int // 0: not all tokens have come
}

// Events that follow the last token, in their order.
const (
	endText   = iota + 1 // what was held back
	endReason            // why it ended
	endUsage
	endDone
)

// appendEventID adds an event's id, REQUEST/TOKENS or REQUEST/TOKENS+END.
func appendEventID(to []byte, request string, p place) []byte {
	to = append(append(to, request...), '/')
	to = strconv.AppendUint(to, p.tokens, 10)
	if p.end > 0 {
		to = strconv.AppendInt(append(to, '+'), int64(p.end), 10)
	}
	return to
}

// parseEventID reads an id as appendEventID writes it. Requests may have slashes in theirs.
func parseEventID(id string) (request string, p place, ok bool) {
	slash := strings.LastIndexByte(id, '/')
	if slash < 0 {
		return "", p, false
	}
	tokens, end, ended := strings.Cut(id[slash+1:], "+")
	n, err := strconv.ParseUint(tokens, 10, 32)
	if err != nil {
		return "", p, false
	}
	p.tokens = n
	if ended {
		if p.end, err = strconv.Atoi(end); err != nil || p.end < endText || p.end > endDone {
			return "", place{}, false
		}
	}
	// In no other spelling: what it names is one event.
	request = id[:slash]
	return request, p, rpc.ValidRequestID(request) && string(appendEventID(nil, request, p)) == id
}

// leastSecret is the shortest secret that a client may choose, bytes.
const leastSecret = 32

// secretOf is the secret that a client has, or chooses, for a request; "": none.
func secretOf(header http.Header) (string, error) {
	secret := header.Get(headerSecret)
	if secret != "" && (len(secret) < leastSecret || !rpc.ValidRequestID(secret)) {
		return "", invalid(headerSecret, fmt.Sprintf("has to be %d to 128 printable characters, drawn at random", leastSecret))
	}
	return secret, nil
}

// resumable reads for how long a stream can be resumed. Its events have ids then, and the router
// keeps them.
func (c *parsedRequest) resumable(f *fields, q *inferencev1.GenerateRequest) {
	var text string
	f.decode("resumable_for", &text, `a string such as "60s"`)
	if text == "" || !c.stream {
		return
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		f.wrong(invalid("resumable_for", fmt.Sprintf("%q is not a duration: write it like 60s", clienterr.Shorten(text))))
	case c.n > 1:
		f.wrong(unsupported("resumable_for", "needs n = 1: only a stream of one answer can be resumed"))
	default:
		q.ResumableFor, c.ids = durationpb.New(d), d > 0
	}
}

// resume goes on with a stream after the event that the client names.
func (h *Handler) resume(ctx context.Context, s *stream, lastEventID string) error {
	request, from, ok := parseEventID(lastEventID)
	switch {
	case !ok:
		return invalid(headerLastEventID, fmt.Sprintf("%q is not the id of an event: send the last one that came, such as REQUEST/17", clienterr.Shorten(lastEventID)))
	case !s.parsed.stream || len(s.answers) > 1:
		return invalid(headerLastEventID, "goes on with a stream of one answer: send it with the request that began the stream")
	}
	s.parsed.ids, s.resumed, s.from = true, true, from
	offset := from.tokens
	if s.parsed.tools != nil {
		offset = 0 // where in a call it goes on is in all of the text
	}
	s.answers[0].count = uint32(offset)
	err := s.serve(s.receive, func(to receive) error {
		return h.backend.Resume(ctx, &inferencev1.ResumeRequest{RequestId: request, Offset: offset, Secret: s.parsed.secret},
			func(event *inferencev1.GenerateEvent) error { return to(0, event) })
	})
	if err != nil {
		return unresumed(err)
	}
	if count := s.answers[0].count; s.parsed.tools != nil && from.tokens > uint64(count) {
		return invalid(headerLastEventID, fmt.Sprintf("%d is past the %d tokens of the answer", from.tokens, count))
	}
	if err := s.finish(); err != nil {
		return err
	}
	if s.exchange.status == 0 {
		// It had all. This tells clients of server-sent events not to come again.
		return s.exchange.begin(http.StatusNoContent, eventStream)
	}
	return nil
}

// unresumed is why a stream cannot go on, in words of the request that asks for it.
func unresumed(err error) error {
	err = rename(err, func(string) string { return headerLastEventID })
	if f, is := errors.AsType[*Failure](err); is && f.Status == http.StatusNotFound && f.Param == headerLastEventID {
		f.Message += "; or send the request again without " + headerLastEventID + ", and it begins anew"
	}
	return err
}
