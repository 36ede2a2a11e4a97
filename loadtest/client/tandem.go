package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tandem-serving/tandem/loadtest/internal/rawnet"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

const (
	// DefaultConnections is how many connections a Tandem client spreads its streams
	// over. More cost more system calls for the same messages: 3,000 streams of 10 tokens
	// a second took 46% of one core with 1 connection, 52% with 2, and 53 to 58% with 4
	// to 16. A single connection is limited to the server's streams per connection,
	// 10,000 with Tandem; further ones would wait in the client.
	DefaultConnections = 2
	// Fixed windows keep grpc-go from probing the link during a measurement. A stream's
	// window holds everything it ever has in flight.
	streamWindowBytes     = 1 << 20
	connectionWindowBytes = 16 << 20
	// bufferBytes is the maximum of one read or write system call: with thousands of
	// streams, about a thousand messages.
	bufferBytes = 64 << 10
	// maxEventBytes bounds a message.
	maxEventBytes = 16 << 20
	// describeTimeout bounds the wait for a server's description.
	describeTimeout = 5 * time.Second
	// maxErrorBytes bounds a stored error message.
	maxErrorBytes = 200
	// arrivalsAtFirst is a record's initial capacity in messages.
	arrivalsAtFirst = 512
)

// TandemConfig configures a client of a Tandem router.
type TandemConfig struct {
	// Address is "host:port" or "unix:///path".
	Address string
	// Model to request; empty: the only one served.
	Model string
	// APIKey is sent as a bearer token; empty: none.
	APIKey string
	// Connections to spread the streams over; 0: DefaultConnections.
	Connections int
	// Mode says where prefill and decode run.
	Mode inferencev1.Mode
	// TTFT and TPOT are the latency objective of each request; 0: none.
	TTFT, TPOT time.Duration
	// Credentials make the connections secure. Nil: they are not encrypted.
	Credentials credentials.TransportCredentials
	// Dialer replaces the operating system's, for tests.
	Dialer func(ctx context.Context, address string) (net.Conn, error)
}

// tandem is a client of a router's gRPC API.
type tandem struct {
	cfg   TandemConfig
	slo   *inferencev1.Slo
	conns []*grpc.ClientConn
	next  atomic.Uint32
}

// bearerToken is an API key as gRPC sends it, with TLS or without.
type bearerToken string

func (t bearerToken) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(t)}, nil
}

func (bearerToken) RequireTransportSecurity() bool { return false }

// NewTandem returns a client of Tandem's gRPC API. It does not connect yet; the error
// concerns the configuration.
//
// It dials without the interceptors of pkg/rpc, to spend its CPU time on streams.
func NewTandem(cfg TandemConfig) (Client, error) {
	cfg.Connections = cmp.Or(cfg.Connections, DefaultConnections)
	if cfg.Connections < 1 || cfg.Connections > 1024 {
		return nil, fmt.Errorf("%d connections: use 1 to 1024", cfg.Connections)
	}
	address, err := dialName(cfg.Address)
	if err != nil {
		return nil, err
	}
	t := &tandem{cfg: cfg}
	if cfg.TTFT > 0 || cfg.TPOT > 0 {
		t.slo = new(inferencev1.Slo)
		if cfg.TTFT > 0 {
			t.slo.Ttft = durationpb.New(cfg.TTFT)
		}
		if cfg.TPOT > 0 {
			t.slo.Tpot = durationpb.New(cfg.TPOT)
		}
	}
	dialer := cfg.Dialer
	if dialer == nil {
		dialer = rawnet.Dial
	}
	transport := cfg.Credentials
	if transport == nil {
		transport = insecure.NewCredentials()
	}
	options := []grpc.DialOption{
		grpc.WithContextDialer(dialer),
		grpc.WithTransportCredentials(transport),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0),
		grpc.WithStaticStreamWindowSize(streamWindowBytes),
		grpc.WithStaticConnWindowSize(connectionWindowBytes),
		grpc.WithReadBufferSize(bufferBytes),
		grpc.WithWriteBufferSize(bufferBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxEventBytes)),
	}
	if cfg.APIKey != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearerToken(cfg.APIKey)))
	}
	for range cfg.Connections {
		conn, err := grpc.NewClient(address, options...)
		if err != nil {
			_ = t.Close() // nothing is connected yet
			return nil, fmt.Errorf("address %q: %w", cfg.Address, err)
		}
		t.conns = append(t.conns, conn)
	}
	return t, nil
}

// dialName is an address in grpc-go's form.
func dialName(address string) (string, error) {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		if !filepath.IsAbs(path) {
			return "", fmt.Errorf("address %q: the path must be absolute, as in unix:///run/tandem.sock", address)
		}
		return address, nil
	}
	if host, port, err := net.SplitHostPort(address); err != nil || host == "" || port == "" {
		return "", fmt.Errorf("address %q: give host:port or unix:///path", address)
	}
	return "passthrough:///" + address, nil
}

// Describe lists the models on each connection, so that no request waits for one to be
// established.
func (t *tandem) Describe(ctx context.Context) (Description, error) {
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	var models []*inferencev1.Model
	for _, conn := range t.conns {
		response, err := inferencev1.NewInferenceClient(conn).ListModels(ctx, &inferencev1.ListModelsRequest{})
		if err != nil {
			return Description{}, t.unreachable(err)
		}
		models = response.GetModels()
	}
	model, err := t.choose(models)
	if err != nil {
		return Description{}, err
	}
	return Description{
		Kind: "tandem", Address: t.cfg.Address, Model: model.GetName(),
		VocabularySize: int(model.GetVocabularySize()), ContextTokens: int(model.GetContextTokens()),
	}, nil
}

func (t *tandem) choose(models []*inferencev1.Model) (*inferencev1.Model, error) {
	names := make([]string, 0, len(models))
	for _, model := range models {
		if model.GetName() == t.cfg.Model || (t.cfg.Model == "" && len(models) == 1) {
			return model, nil
		}
		names = append(names, model.GetName())
	}
	switch {
	case len(models) == 0:
		return nil, fmt.Errorf("the router at %s serves no model yet: see 'tandem workers'", t.cfg.Address)
	case t.cfg.Model == "":
		return nil, fmt.Errorf("the router at %s serves several models: pass --model with one of %s", t.cfg.Address, strings.Join(names, ", "))
	}
	return nil, fmt.Errorf("the router at %s does not serve model %q: pass --model with one of %s", t.cfg.Address, t.cfg.Model, strings.Join(names, ", "))
}

func (t *tandem) unreachable(err error) error {
	s := status.Convert(err)
	if s.Code() == codes.Unavailable && strings.Contains(s.Message(), "looked like an HTTP/1.1 header") {
		return fmt.Errorf("the server at %s speaks HTTP, not gRPC: pass the router's gRPC address or, to measure an OpenAI-compatible server, --openai http://%s", t.cfg.Address, t.cfg.Address)
	}
	switch {
	case s.Code() == codes.Unavailable && strings.Contains(s.Message(), "no such host"):
		return fmt.Errorf("host of %s not found: check its name", t.cfg.Address)
	case s.Code() == codes.Unavailable && len(s.Details()) == 0: // no answer of the router's
		return fmt.Errorf("cannot reach the router at %s: start it with 'tandem up', or pass --addr", t.cfg.Address)
	case s.Code() == codes.Unimplemented:
		return fmt.Errorf("the server at %s does not know Tandem's API: is it a router? For an OpenAI server pass its URL (%s)", t.cfg.Address, shortened(s.Message()))
	case s.Code() == codes.DeadlineExceeded:
		return fmt.Errorf("no answer from %s within %s: check that it runs and is a router", t.cfg.Address, describeTimeout)
	}
	return fmt.Errorf("ask the router at %s for its models: %s", t.cfg.Address, shortened(s.Message()))
}

var (
	generateDesc   = &grpc.StreamDesc{StreamName: "Generate", ServerStreams: true}
	generateMethod = inferencev1.Inference_Generate_FullMethodName
)

func (t *tandem) Do(ctx context.Context, q *workload.Request, clock Clock, r *record.Record) workload.Answer {
	r.Sent, r.Admitted, r.End = record.Unset, record.Unset, record.Unset
	r.PromptTokens, r.CachedTokens = -1, -1
	e := &event{clock: clock, keep: q.Then != nil}
	answer, answered, err := t.stream(ctx, q, e, r)
	r.End = clock.Now()
	if r.OutputTokens == 0 {
		for _, a := range r.Arrivals {
			r.OutputTokens += int(a.Tokens)
		}
	}
	t.conclude(ctx, err, answered, r)
	return answer
}

// stream sends the request and reads the response to its end. It returns the status, nil
// after a complete response. answered is false if grpc-go made the status because there
// was no connection.
func (t *tandem) stream(ctx context.Context, q *workload.Request, e *event, r *record.Record) (answer workload.Answer, answered bool, err error) {
	conn := t.conns[int(t.next.Add(1)-1)%len(t.conns)]
	stream, err := conn.NewStream(ctx, generateDesc, generateMethod, grpc.ForceCodecV2(eventCodec{}), grpc.StaticMethod())
	if err != nil {
		return answer, false, err
	}
	// SendMsg returns io.EOF if it fails; receiving returns the cause.
	if err := stream.SendMsg(t.request(q)); err != nil && !errors.Is(err, io.EOF) {
		return answer, false, err
	}
	_ = stream.CloseSend() // as above
	r.Sent = e.clock.Now()
	r.Arrivals = make([]record.Arrival, 0, min(max(q.MaxTokens, 1), arrivalsAtFirst))
	var text strings.Builder
	finished := false
	for {
		err := stream.RecvMsg(e)
		switch {
		case errors.Is(err, io.EOF) && finished:
			answer.Text = text.String()
			return answer, true, nil
		case errors.Is(err, io.EOF):
			return answer, true, status.Error(codes.DataLoss, "the stream ended without a result")
		case err != nil:
			// grpc-go's own statuses have neither trailers nor details. A status from the
			// server, such as a refusal, has at least a content type.
			return answer, len(stream.Trailer()) > 0 || len(status.Convert(err).Details()) > 0, err
		}
		if e.tokens > 0 {
			r.Arrivals = append(r.Arrivals, record.Arrival{At: e.at, Tokens: int32(e.tokens)})
			e.clock.CountTokens(e.tokens)
		}
		if e.keep {
			answer.TokenIDs = append(answer.TokenIDs, e.ids...)
			text.Write(e.text)
		}
		if a := e.accepted; a != nil {
			r.Admitted, r.ID, r.PromptTokens = e.at, a.GetRequestId(), int(a.GetPromptTokens())
			e.clock.CountAdmitted()
		}
		if f := e.finished; f != nil {
			finished = true
			finish(r, f)
		}
	}
}

func finish(r *record.Record, f *inferencev1.Finished) {
	r.FinishReason = strings.ToLower(strings.TrimPrefix(f.GetReason().String(), "FINISH_REASON_"))
	r.Timings, r.Route = f.GetTimings(), f.GetRoute()
	if u := f.GetUsage(); u != nil {
		r.PromptTokens, r.CachedTokens, r.OutputTokens = int(u.GetPromptTokens()), int(u.GetCachedTokens()), int(u.GetCompletionTokens())
	}
}

// request converts a request for the router.
func (t *tandem) request(q *workload.Request) *inferencev1.GenerateRequest {
	request := &inferencev1.GenerateRequest{
		Model: t.cfg.Model, MaxTokens: proto.Uint32(uint32(max(q.MaxTokens, 0))), IgnoreEos: q.Exact, Mode: t.cfg.Mode, Slo: t.slo,
		Sampling: &inferencev1.Sampling{Temperature: &q.Temperature, Seed: &q.Seed},
		Tenant:   q.Tenant, Priority: q.Priority, CacheSalt: q.CacheSalt,
	}
	if len(q.Prompt.TokenIDs) > 0 {
		request.Input = &inferencev1.GenerateRequest_TokenIds{TokenIds: &inferencev1.TokenIds{Ids: q.Prompt.TokenIDs}}
	} else {
		request.Input = &inferencev1.GenerateRequest_Prompt{Prompt: q.Prompt.Text}
	}
	return request
}

// conclude converts a status to an outcome. answered: the status is the server's.
func (t *tandem) conclude(ctx context.Context, err error, answered bool, r *record.Record) {
	if err == nil {
		r.Outcome = record.Completed
		return
	}
	s := status.Convert(err)
	r.Code, r.Error, r.Reason = code.Code(s.Code()).String(), shortened(s.Message()), reasonOf(s)
	_, limited := ctx.Deadline()
	switch {
	// ctx takes precedence over its effect on the stream. A server counts the same
	// deadline and may report it first.
	case errors.Is(ctx.Err(), context.Canceled):
		r.Outcome = record.Cancelled
	case ctx.Err() != nil, limited && s.Code() == codes.DeadlineExceeded:
		r.Outcome = record.TimedOut
	case len(r.Arrivals) == 0 && answered && (s.Code() == codes.ResourceExhausted || s.Code() == codes.Unavailable):
		r.Outcome = record.Rejected
	default:
		r.Outcome = record.Failed
	}
}

// reasonOf is the reason in a status, if there is one.
func reasonOf(s *status.Status) string {
	for _, detail := range s.Details() {
		if info, is := detail.(*errdetails.ErrorInfo); is {
			return shortened(info.GetReason())
		}
	}
	return ""
}

// shortened bounds a server's message at a character boundary.
func shortened(message string) string {
	if len(message) <= maxErrorBytes {
		return message
	}
	end := maxErrorBytes
	for end > 0 && !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + "…"
}

func (t *tandem) Close() error {
	var all []error
	for _, conn := range t.conns {
		all = append(all, conn.Close())
	}
	return errors.Join(all...)
}
