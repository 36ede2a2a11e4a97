package fakeserver

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// generate serves a completion or a chat.
func (s *OpenAIServer) generate(w http.ResponseWriter, r *http.Request, chat bool) {
	q, prompt, status, err := s.parse(r, chat)
	if err != nil {
		code := ""
		if status == http.StatusNotFound {
			code = "model_not_found"
		}
		s.fail(w, status, code, err.Error())
		return
	}
	g := &openAIAnswer{
		server: s, w: w, control: http.NewResponseController(w), request: q, chat: chat,
		prompt: prompt, want: q.tokens(), created: time.Now().Unix(), signal: make(chan struct{}, 1),
	}
	// The wheel's goroutine must not wait for a client, so another one writes.
	written := make(chan struct{})
	go func() {
		defer close(written)
		g.write()
	}()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	g.gone = cancel
	_, err = s.engine.Serve(ctx, g.want, g)
	g.tell(func() { g.over, g.err = true, err })
	<-written
}

// openAIAnswer is the Sink of one request. The engine queues messages, and write sends
// them.
type openAIAnswer struct {
	server  *OpenAIServer
	w       http.ResponseWriter
	control *http.ResponseController
	request *openAIRequest
	chat    bool
	prompt  int
	want    int
	created int64
	gone    context.CancelFunc
	signal  chan struct{}

	mu       sync.Mutex
	id       string // empty until accepted
	messages []int  // token counts of messages to send
	over     bool
	err      error

	// Used only by write.
	out           []byte
	before, after string // a chunk around its text
	sent          int
	failed        error
}

func (g *openAIAnswer) Accept(id string) error {
	g.tell(func() { g.id = id })
	return nil
}

func (g *openAIAnswer) Tokens(_, n int) error {
	g.tell(func() { g.messages = append(g.messages, n) })
	return nil
}

// tell changes the queue and wakes write.
func (g *openAIAnswer) tell(change func()) {
	g.mu.Lock()
	change()
	g.mu.Unlock()
	select {
	case g.signal <- struct{}{}:
	default:
	}
}

// write sends messages until the answer is complete.
func (g *openAIAnswer) write() {
	begun := false
	var messages []int
	for {
		<-g.signal
		g.mu.Lock()
		id, over, err := g.id, g.over, g.err
		messages, g.messages = g.messages, messages[:0]
		g.mu.Unlock()
		if id != "" && !begun && g.request.Stream {
			begun = true
			g.begin(id)
		}
		for _, n := range messages {
			if g.request.Stream {
				g.message(n)
			}
			g.sent += n
		}
		g.flush()
		if !over {
			continue
		}
		switch {
		case begun:
			g.end(err)
		case err == nil:
			g.whole(id)
		case errors.Is(err, ErrRefused) && g.server.options.Dialect == DialectVLLM, errors.Is(err, ErrClosed):
			g.server.fail(g.w, http.StatusServiceUnavailable, "", err.Error())
		case errors.Is(err, ErrRefused):
			g.server.fail(g.w, http.StatusTooManyRequests, "rate_limit_exceeded", err.Error())
		case errors.Is(err, ErrBroken):
			g.server.fail(g.w, http.StatusInternalServerError, "", err.Error())
		}
		return
	}
}

func (g *openAIAnswer) vllm() bool { return g.server.options.Dialect == DialectVLLM }

func (g *openAIAnswer) usageAsked() bool {
	return g.request.StreamOptions != nil && g.request.StreamOptions.IncludeUsage
}

// head is an object up to its choices.
func (g *openAIAnswer) head(object string) string {
	prefix := "cmpl-"
	if g.chat {
		prefix = "chatcmpl-"
	}
	head := `{"id":` + quote(prefix+g.id) + `,"object":"` + object + `","created":` + strconv.FormatInt(g.created, 10) + `,"model":` + quote(Model)
	if !g.vllm() {
		head += `,"system_fingerprint":"fp_fake"`
	}
	return head + `,"choices":`
}

// chunk is a stream's chunk up to its choices.
func (g *openAIAnswer) chunk() string {
	if g.chat {
		return g.head("chat.completion.chunk")
	}
	return g.head("text_completion")
}

func (g *openAIAnswer) begin(id string) {
	h := g.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Request-Id", id)
	g.w.WriteHeader(http.StatusOK)
	if err := g.control.Flush(); err != nil {
		g.lost(err)
	}
	g.before, g.after = g.chunk()+`[{"index":0,"text":"`, `","logprobs":null,"finish_reason":null`
	if g.chat {
		g.before, g.after = g.chunk()+`[{"index":0,"delta":{"content":"`, `"},"logprobs":null,"finish_reason":null`
	}
}

// message sends a chunk of n tokens, and before a chat's first one its role.
func (g *openAIAnswer) message(n int) {
	if g.chat && g.sent == 0 {
		g.event(g.chunk() + `[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]` + g.usage(0) + `}`)
	}
	texts := g.server.texts
	g.out = append(append(g.out, "data: "...), g.before...)
	for i := range n {
		g.out = append(g.out, texts[(g.sent+i)%len(texts)]...)
	}
	if g.vllm() && g.sent+n == g.want {
		g.out = append(append(g.out, strings.TrimSuffix(g.after, "null")...), `"length","stop_reason":null`...)
	} else {
		g.out = append(g.out, g.after...)
	}
	if q := g.request; q.ReturnTokenIDs != nil && *q.ReturnTokenIDs {
		g.out = append(g.out, `,"token_ids":[`...)
		for i := range n {
			g.out = append(strconv.AppendInt(g.out, int64(g.sent+i)%vocabularySize, 10), ',')
		}
		g.out[len(g.out)-1] = ']'
	}
	g.out = append(append(append(g.out, "}]"...), g.usage(g.sent+n)...), "}\n\n"...)
}

// usage is the usage of a chunk that is not the last.
func (g *openAIAnswer) usage(tokens int) string {
	switch o := g.request.StreamOptions; {
	case g.usageAsked() && o.ContinuousUsage != nil && *o.ContinuousUsage:
		return `,"usage":` + g.counts(tokens)
	case g.usageAsked() && !g.vllm():
		return `,"usage":null`
	}
	return ""
}

func (g *openAIAnswer) counts(tokens int) string {
	return `{"prompt_tokens":` + strconv.Itoa(g.prompt) + `,"total_tokens":` + strconv.Itoa(g.prompt+tokens) + `,"completion_tokens":` + strconv.Itoa(tokens) + `}`
}

// end sends what follows the tokens.
func (g *openAIAnswer) end(err error) {
	switch {
	case errors.Is(err, ErrBroken) && g.vllm():
		g.event(g.server.errorBody(http.StatusInternalServerError, "", err.Error()))
		g.event("[DONE]")
	case err != nil:
		// The stream ends silently.
	default:
		if !g.vllm() {
			empty := `"text":""`
			if g.chat {
				empty = `"delta":{}`
			}
			g.event(g.chunk() + `[{"index":0,` + empty + `,"logprobs":null,"finish_reason":"length"}]` + g.usage(g.sent) + `}`)
		}
		if g.usageAsked() {
			g.event(g.chunk() + `[],"usage":` + g.counts(g.sent) + `}`)
		}
		g.event("[DONE]")
	}
	g.flush()
}

// whole sends the answer as one response.
func (g *openAIAnswer) whole(id string) {
	var text strings.Builder
	for i := range g.sent {
		text.WriteString(g.server.texts[i%len(g.server.texts)])
	}
	object, content := "text_completion", `"text":"`+text.String()+`"`
	if g.chat {
		object, content = "chat.completion", `"message":{"role":"assistant","content":"`+text.String()+`","refusal":null}`
	}
	g.w.Header().Set("X-Request-Id", id)
	g.server.answer(g.w, http.StatusOK, g.head(object)+`[{"index":0,`+content+`,"logprobs":null,"finish_reason":"length"}],"usage":`+g.counts(g.sent)+`}`)
}

func (g *openAIAnswer) event(data string) {
	g.out = append(append(append(g.out, "data: "...), data...), "\n\n"...)
}

// flush sends what was written.
func (g *openAIAnswer) flush() {
	if len(g.out) > 0 && g.failed == nil {
		if _, err := g.w.Write(g.out); err != nil {
			g.lost(err)
		} else if err := g.control.Flush(); err != nil {
			g.lost(err)
		}
	}
	g.out = g.out[:0]
}

// lost ends the request of a disconnected client.
func (g *openAIAnswer) lost(err error) {
	g.failed = err
	g.gone()
}
