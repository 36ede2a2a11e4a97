package client

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tandem-serving/tandem/loadtest/client/internal/chunk"
	"github.com/tandem-serving/tandem/loadtest/client/internal/sse"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

const (
	// afterDone is how long to wait for the stream to end after its last event, so that
	// its connection can be reused. The recorded end is the last event.
	afterDone = 100 * time.Millisecond
	// maxAfterDone bounds the bytes read in that time.
	maxAfterDone = 4 << 10
	// Codes without a status: the connection failed, or the stream was invalid.
	codeConnection, codeStream = "connection", "stream"
	// codeTimeout: the client's own limit ended the request.
	codeTimeout = "timeout"
	// CodeClient means that this machine could not send the request, so the server never saw it.
	// The outcome is Unsent.
	CodeClient = "client"
)

// failure is a failed response with its code and, if the server gave one, its reason.
type failure struct{ code, message, reason string }

func (f *failure) Error() string { return f.message }

// Do implements Client.
//
// A message is an event with output; a chat's opening role, the finish reason and the
// usage are not messages. Its token count comes from the server, by token ids or by usage
// that grows with each message, otherwise it is one. OutputTokens is the server's final
// count. If that exceeds the sum, some messages carried several tokens or some tokens had
// no text; Arrivals is not corrected, since only the server knows which.
func (t *openAI) Do(ctx context.Context, q *workload.Request, clock Clock, r *record.Record) workload.Answer {
	r.Sent, r.Admitted, r.End = record.Unset, record.Unset, record.Unset
	r.PromptTokens, r.CachedTokens = -1, -1
	s := &answering{clock: clock, r: r, keep: q.Then != nil, even: true}
	s.sent.Store(int64(record.Unset))
	err := t.exchange(ctx, q, s)
	if r.End == record.Unset {
		r.End = clock.Now()
	}
	r.Sent = time.Duration(s.sent.Load())
	// The hook runs in the connection's goroutine, possibly late or never. A request was
	// sent by the time it was admitted.
	if r.Admitted != record.Unset && (r.Sent == record.Unset || r.Sent > r.Admitted) {
		r.Sent = r.Admitted
	}
	if r.OutputTokens == 0 {
		r.OutputTokens = s.tokens
	}
	end(ctx, err, r)
	return workload.Answer{TokenIDs: s.ids, Text: s.text.String()} // empty unless kept
}

// end converts an error to an outcome.
func end(ctx context.Context, err error, r *record.Record) {
	var f *failure
	switch {
	case err == nil:
		r.Outcome = record.Completed
		return
	case errors.As(err, &f):
		r.Code, r.Error, r.Reason = f.code, f.message, f.reason
	case r.Sent == record.Unset && (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)):
		r.Code, r.Error = CodeClient, "too many open files: raise the limit (ulimit -n), or have fewer requests in flight"
	case r.Sent == record.Unset && errors.Is(err, syscall.EADDRNOTAVAIL):
		r.Code, r.Error = CodeClient, "no local port is free for another connection: widen net.ipv4.ip_local_port_range, or have fewer requests in flight"
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		r.Code, r.Error = codeTimeout, "the answer was not complete within the request's time limit"
	case ctx.Err() != nil: // more telling than its effect on the connection
		r.Code, r.Error = codeConnection, ctx.Err().Error()
	default:
		r.Code, r.Error = codeConnection, shortened(rootCause(err).Error())
	}
	refused := r.Code == "HTTP 429" || r.Code == "HTTP 503"
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		r.Outcome = record.Cancelled
	case ctx.Err() != nil:
		r.Outcome = record.TimedOut
	case r.Code == CodeClient:
		r.Outcome = record.Unsent
	case refused && len(r.Arrivals) == 0:
		r.Outcome = record.Rejected
	default:
		r.Outcome = record.Failed
	}
}

// exchange sends the request and reads the response.
func (t *openAI) exchange(ctx context.Context, q *workload.Request, s *answering) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	// The stream may end after the request, whose context must not close the connection.
	stream, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unlink := context.AfterFunc(ctx, cancel)
	err := t.open(stream, q, s)
	if err == nil {
		err = s.read()
	}
	unlink()
	if err != nil {
		s.close()
		cancel()
		return err
	}
	t.endings.Go(func() {
		timer := time.AfterFunc(afterDone, cancel)
		// Errors no longer matter.
		_, _ = io.Copy(io.Discard, io.LimitReader(s.body, maxAfterDone))
		s.close()
		timer.Stop()
		cancel()
	})
	return nil
}

// open sends the request and reads the response up to its events.
func (t *openAI) open(ctx context.Context, q *workload.Request, s *answering) error {
	model := t.model.Load()
	if model == nil {
		return &failure{code: CodeClient, message: "no model is known: call Describe first, or set one"}
	}
	body, err := t.body(*model, q)
	if err != nil {
		return &failure{code: CodeClient, message: err.Error()}
	}
	trace := &httptrace.ClientTrace{WroteRequest: func(info httptrace.WroteRequestInfo) {
		if info.Err == nil {
			s.sent.Store(int64(s.clock.Now()))
		}
	}}
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodPost, t.endpoint, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header = t.header.Clone()
	request.Host = t.header.Get("Host") // net/http sends no other
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "text/event-stream")
	response, err := t.client.Do(request) //nolint:bodyclose // exchange does, after the request
	if err != nil {
		return err
	}
	s.body = response.Body
	s.r.ID = response.Header.Get("X-Request-Id")
	if response.StatusCode != http.StatusOK {
		return statusFailure(response)
	}
	if kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type")); err == nil && kind != "text/event-stream" {
		said, _ := failureOf(response)
		return &failure{code: codeStream, message: fmt.Sprintf("the answer is %s, not a stream: %s", kind, said)}
	}
	s.r.Admitted = s.clock.Now()
	s.clock.CountAdmitted()
	s.r.Arrivals = make([]record.Arrival, 0, min(max(q.MaxTokens, 1), arrivalsAtFirst))
	return nil
}

func statusFailure(response *http.Response) error {
	said, reason := failureOf(response)
	if to := response.Header.Get("Location"); response.StatusCode < 400 && to != "" {
		said = shortened("redirects to " + to)
	}
	return &failure{"HTTP " + strconv.Itoa(response.StatusCode), said, reason}
}

// reading is the reusable state for reading a stream.
type reading struct {
	events *sse.Reader
	chunks chunk.Parser
}

var readings = sync.Pool{New: func() any { return &reading{events: sse.NewReader(nil, 0)} }}

// answering is a response in progress.
type answering struct {
	clock Clock
	r     *record.Record
	body  io.ReadCloser // nil until the response
	// sent is Record.Sent, set by another goroutine.
	sent atomic.Int64
	// at is when the last bytes arrived.
	at time.Duration

	// tokens is the sum over Arrivals.
	tokens int
	// even: the usage grew with each message so far, to counted.
	even    bool
	counted int

	keep bool
	ids  []uint32
	text strings.Builder
}

// close returns the connection to the pool if the response has ended, otherwise closes
// it.
func (s *answering) close() {
	if s.body != nil {
		_ = s.body.Close() // nothing more will be read
	}
}

// Read implements io.Reader and records the time of the last bytes.
func (s *answering) Read(into []byte) (int, error) {
	n, err := s.body.Read(into)
	if n > 0 {
		s.at = s.clock.Now()
	}
	return n, err
}

// read reads the events to the end; nil if the whole response arrived.
func (s *answering) read() error {
	in, ok := readings.Get().(*reading)
	if !ok {
		return errors.New("the pool has something else") // cannot happen
	}
	in.events.Reset(s)
	in.chunks.Reset()
	defer func() {
		in.events.Reset(nil)
		readings.Put(in)
	}()
	for {
		data, err := in.events.Next()
		if err != nil {
			return s.broken(err)
		}
		if string(bytes.TrimSpace(data)) == "[DONE]" {
			if s.r.FinishReason == "" && s.tokens == 0 {
				s.r.End = s.at
				return &failure{code: codeStream, message: "the stream ended with neither a token nor a finish_reason"}
			}
			return s.ended()
		}
		if len(data) == 0 {
			continue
		}
		c, err := in.chunks.Parse(data, s.keep)
		if err != nil {
			return &failure{code: codeStream, message: shortened(err.Error())}
		}
		if c.Error != nil {
			return chunkFailure(c.Error)
		}
		s.take(&c)
	}
}

// ended handles the end of the response: an error if the server gave it up, as vLLM and
// SGLang do.
func (s *answering) ended() error {
	s.r.End = s.at
	switch s.r.FinishReason {
	case "abort", "cancelled", "error":
		return &failure{code: codeStream, message: "the server ended the answer: " + s.r.FinishReason}
	}
	return nil
}

// broken handles the end of events. Without [DONE] the response has ended if a finish
// reason was sent.
func (s *answering) broken(err error) error {
	switch {
	case s.r.FinishReason != "" && !errors.Is(err, sse.ErrTooLong):
		return s.ended()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &failure{code: codeStream, message: fmt.Sprintf("the stream ended after %d tokens, with neither a finish_reason nor [DONE]", s.tokens)}
	case errors.Is(err, sse.ErrTooLong):
		return &failure{code: codeStream, message: err.Error()}
	}
	return err
}

// chunkFailure is an error sent in the stream. vLLM gives it an HTTP status as code.
func chunkFailure(e *chunk.Error) error {
	code := codeStream
	if status, err := strconv.Atoi(e.Code); err == nil && status >= 400 && status < 600 {
		code = "HTTP " + e.Code
	}
	message := cmp.Or(e.Message, e.Type, "the server reported a failure without a reason")
	return &failure{code, shortened(strings.Join(strings.Fields(message), " ")), reasonIn(e)}
}

// reasonIn is an error's code, unless that is an HTTP status.
func reasonIn(e *chunk.Error) string {
	if _, err := strconv.Atoi(e.Code); err == nil {
		return ""
	}
	return shortened(strings.Join(strings.Fields(e.Code), " "))
}

// take records a chunk.
func (s *answering) take(c *chunk.Chunk) {
	if s.r.ID == "" {
		s.r.ID = c.ID
	}
	if tokens := s.carried(c); tokens > 0 {
		s.r.Arrivals = append(s.r.Arrivals, record.Arrival{At: s.at, Tokens: int32(tokens)})
		s.tokens += tokens
		s.clock.CountTokens(tokens)
	}
	if s.keep {
		s.ids = append(s.ids, c.TokenIDs...)
		s.text.WriteString(c.Text)
	}
	if c.FinishReason != "" {
		s.r.FinishReason = c.FinishReason
	}
	if u := c.Usage; u != nil {
		// Servers that do not count, or not yet, send 0.
		s.r.OutputTokens = max(s.r.OutputTokens, u.Completion)
		if u.Prompt > 0 {
			s.r.PromptTokens = u.Prompt
		}
		if u.Cached >= 0 {
			s.r.CachedTokens = u.Cached
		}
	}
}

// carried is the number of tokens in a chunk.
func (s *answering) carried(c *chunk.Chunk) int {
	if !c.Choices {
		return 0
	}
	// Per-message usage tells the count by its growth, including tokens without text.
	// Some servers send 0 until the end, and others only a final sum, so it must have
	// grown with every message from the first.
	grown := 0
	if c.Usage != nil && s.even {
		grown = c.Usage.Completion - s.counted
		s.counted = max(s.counted, c.Usage.Completion)
	}
	if c.Generated() && grown <= 0 {
		s.even = false
	}
	switch {
	case len(c.TokenIDs) > 0:
		return len(c.TokenIDs)
	case s.even && grown > 0 && (c.Generated() || s.tokens > 0 || c.FinishReason == ""):
		return grown
	case c.Generated():
		return 1
	}
	return 0
}
