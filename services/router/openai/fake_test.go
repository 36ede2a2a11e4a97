package openai_test

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/openai"
	"github.com/tandem-serving/tandem/services/router/serving"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake answers every request with the same words.
type fake struct {
	words    []string
	logprobs []*inferencev1.TokenLogprobs
	calls    string // the format of calls, where the request may have any
	ignored  []string
	secret   string // of accepted requests
	held     string // text that comes with the end
	refuse   error  // instead of admitting
	fail     error  // after the words
	wait     func() // before each event; nil: not
	block    bool   // after the words, until the context ends
	panics   bool   // instead of admitting
	renames  bool   // every id is taken
	most     int    // answers at a time; 0: 64
	// Draft tokens, of which accepted were right.
	drafts, accepted uint32

	// Not nil: tokens are sent at once, from another goroutine, if they can be; it is closed when
	// one cannot.
	now     chan struct{}
	sentNow int

	mu    sync.Mutex
	plans int
	asked []*inferencev1.GenerateRequest
	ids   []string
	ended int

	secrets  []string
	rendered [][]uint32
	resumed  []*inferencev1.ResumeRequest

	embedded []*inferencev1.EmbedRequest

	scores []*inferencev1.TokenLogprobs // of the prompt

	text  string // of each prompt in tokens
	texts int    // that were made
}

func (f *fake) Generate(ctx context.Context, from *serving.Caller, q *inferencev1.GenerateRequest, send func(*inferencev1.GenerateEvent) error) error {
	f.mu.Lock()
	f.asked = append(f.asked, proto.CloneOf(q))
	f.ids = append(f.ids, rpc.RequestID(ctx))
	f.secrets = append(f.secrets, from.Secret)
	f.rendered = append(f.rendered, from.Rendered)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.ended++
	}()
	if f.now != nil && from.Now != nil {
		return f.answer(ctx, q, f.atOnce(from.Now, send))
	}
	return f.answer(ctx, q, send)
}

// atOnce sends events with now where that can, else with send.
func (f *fake) atOnce(now func(*inferencev1.GenerateEvent) bool, send func(*inferencev1.GenerateEvent) error) func(*inferencev1.GenerateEvent) error {
	refused := sync.OnceFunc(func() { close(f.now) })
	return func(event *inferencev1.GenerateEvent) error {
		sent := make(chan bool)
		go func() { sent <- now(event) }()
		if <-sent {
			f.sentNow++
			return nil
		}
		if event.GetTokens() != nil {
			refused()
		}
		return send(event)
	}
}

func (f *fake) answer(ctx context.Context, q *inferencev1.GenerateRequest, send func(*inferencev1.GenerateEvent) error) error {
	if f.refuse != nil {
		return f.refuse
	}
	if f.panics {
		panic("what nobody should see")
	}
	accepted := &inferencev1.Accepted{RequestId: f.id(ctx), Model: "real", PromptTokens: 5, Seed: 1, Secret: f.secret, SystemFingerprint: "fp_0123456789ab"}
	if q.GetConversation().GetToolChoice() != nil {
		accepted.ToolCallFormat, accepted.Ignored = f.calls, f.ignored
	}
	events := []*inferencev1.GenerateEvent{{Event: &inferencev1.GenerateEvent_Accepted{Accepted: accepted}}}
	if q.PromptLogprobs != nil {
		scores := &inferencev1.PromptLogprobs{Logprobs: f.scores, TokenIds: make([]uint32, len(f.scores))}
		events = append(events, &inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_PromptLogprobs{PromptLogprobs: scores}})
	}
	for i, word := range f.words {
		delta := &inferencev1.TokenDelta{TokenIds: []uint32{uint32(i)}, Text: word}
		if q.Logprobs != nil && i < len(f.logprobs) {
			delta.Logprobs = f.logprobs[i : i+1]
		}
		events = append(events, &inferencev1.GenerateEvent{Offset: uint64(i), Event: &inferencev1.GenerateEvent_Tokens{Tokens: delta}})
	}
	for _, event := range events {
		if f.wait != nil {
			f.wait()
		}
		if err := send(event); err != nil {
			return rpc.Error(codes.Canceled, "CLIENT_GONE", "the client is gone", 0)
		}
	}
	if f.block {
		<-ctx.Done()
		return rpc.Error(codes.Canceled, "CLIENT_GONE", "the client is gone", 0)
	}
	if f.fail != nil {
		return f.fail
	}
	return send(&inferencev1.GenerateEvent{Offset: uint64(len(f.words)), Event: &inferencev1.GenerateEvent_Finished{Finished: &inferencev1.Finished{
		Reason: inferencev1.FinishReason_FINISH_REASON_STOP, Text: f.held,
		Usage: &inferencev1.Usage{PromptTokens: 5, CachedTokens: 2, CompletionTokens: uint32(len(f.words)), DraftTokens: f.drafts, AcceptedDraftTokens: f.accepted},
		Timings: &inferencev1.Timings{
			TokenizeNs: 1e6, QueueNs: 2e6, DecideNs: 3e6, ReserveNs: 4e6, PrefillNs: 5e6, TransferExposedNs: 6e6, DecodeNs: 7e6,
			TotalNs: 28e6, TtftNs: 15e6, SecondTokenNs: 8e6, TpotNs: 65e5,
		},
		Route: &inferencev1.Route{Mode: inferencev1.Mode_MODE_DISAGGREGATED, Prefill: "p", Decode: "d", Reason: "asked for"},
	}}})
}

func (f *fake) id(ctx context.Context) string {
	if f.renames {
		return rpc.RequestID(ctx) + "-free"
	}
	return rpc.RequestID(ctx)
}

// Resume sends the last answer again.
func (f *fake) Resume(ctx context.Context, q *inferencev1.ResumeRequest, send func(*inferencev1.GenerateEvent) error) error {
	f.mu.Lock()
	last, id := f.asked[len(f.asked)-1], f.ids[len(f.ids)-1]
	f.resumed = append(f.resumed, proto.CloneOf(q))
	f.mu.Unlock()
	if q.GetRequestId() != id {
		return rpc.Error(codes.NotFound, "REQUEST_NOT_FOUND", "no request has this id and secret", 0)
	}
	if q.GetOffset() > uint64(len(f.words)) {
		return rpc.InvalidArgument("offset", "is past the tokens so far")
	}
	return f.answer(rpc.WithRequestID(ctx, id), last, func(event *inferencev1.GenerateEvent) error {
		if event.GetTokens() != nil && event.GetOffset() < q.GetOffset() {
			return nil
		}
		return send(event)
	})
}

// Fits says that everything does.
func (f *fake) Fits(context.Context, *inferencev1.GenerateRequest) bool { return true }

// Plan makes tokens of the first bytes of a text.
func (f *fake) Plan(ctx context.Context, q *inferencev1.GenerateRequest) (openai.Plan, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plans++
	if f.refuse != nil {
		return openai.Plan{}, f.refuse
	}
	prompt := []uint32{1, 2, 3, 4, 5}
	for i, c := range []byte(q.GetPrompt()[:min(5, len(q.GetPrompt()))]) {
		prompt[i] = uint32(c)
	}
	return openai.Plan{
		Model: "real", Fingerprint: "fp_0123456789ab", Prompt: prompt, MaxTokens: int(q.GetMaxTokens()), RequestID: f.id(ctx),
		TextBytes: func() int { return len(f.text) }, Text: func() string { f.texts++; return strings.Clone(f.text) },
	}, nil
}

// Embed gives each input a vector of its place and its length.
func (f *fake) Embed(_ context.Context, from serving.Caller, q *inferencev1.EmbedRequest) (*inferencev1.EmbedResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.embedded = append(f.embedded, q)
	f.secrets = append(f.secrets, from.Secret)
	if f.refuse != nil {
		return nil, f.refuse
	}
	if _, err := f.Model(q.GetModel()); err != nil {
		return nil, err
	}
	r := &inferencev1.EmbedResponse{Model: "real"}
	for i, input := range q.GetInputs() {
		n := len(input.GetText()) + len(input.GetTokenIds().GetIds())
		r.Embeddings = append(r.Embeddings, &inferencev1.Embedding{Values: []float32{float32(i), float32(n), 0.1, -0.5}, Tokens: uint32(n)})
	}
	return r, nil
}

func (f *fake) MaxAnswers() int { return cmp.Or(f.most, 64) }

func (f *fake) Models() []*inferencev1.Model {
	return []*inferencev1.Model{{Name: "real", ContextTokens: 64, Digest: "0123456789abcdef", HiddenSize: 4}}
}

func (f *fake) Model(name string) (*inferencev1.Model, error) {
	if name == "" || name == "real" || name == "org/alias one" {
		return f.Models()[0], nil
	}
	return nil, rpc.Error(codes.NotFound, "MODEL_NOT_FOUND", "model is not served here; there is real", 0)
}

func (f *fake) only(t *testing.T) *inferencev1.GenerateRequest {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.asked) != 1 {
		t.Fatalf("%d requests", len(f.asked))
	}
	return f.asked[0]
}

// served is all that a handler needs.
type served interface {
	openai.Backend
	openai.Catalog
	MaxAnswers() int
}

// writeTimeout is that of handlers that build makes.
const writeTimeout = 30 * time.Second

// build makes a handler with what config says else.
func build(backend served, config openai.Config) (*openai.Handler, error) {
	config.Backend, config.Catalog, config.MaxAnswers = backend, backend, backend.MaxAnswers
	config.MaxHeldBytes = cmp.Or(config.MaxHeldBytes, 256<<20)
	config.ReadTimeout, config.WriteTimeout = time.Minute, writeTimeout
	return openai.New(config)
}

func handler(t testing.TB, backend served) *openai.Handler {
	t.Helper()
	h, err := build(backend, openai.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// ask sends one request straight to the handler.
func ask(t testing.TB, backend served, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	q := httptest.NewRequest(method, path, strings.NewReader(body))
	q.Header.Set("X-Request-Id", "id-1")
	w := httptest.NewRecorder()
	handler(t, backend).ServeHTTP(w, q)
	return w
}

const (
	chats       = "/v1/chat/completions"
	completions = "/v1/completions"
	responses   = "/v1/responses"
)

func TestNeedsABackend(t *testing.T) {
	if _, err := openai.New(openai.Config{}); err == nil {
		t.Error("no backend is taken")
	}
}

var errTest = errors.New("not a status")

var _ http.Handler = (*openai.Handler)(nil)
