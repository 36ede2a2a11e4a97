package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	tokenizeMethod = "/tandem.inference.v1.Inference/Tokenize"
	generateMethod = "/tandem.inference.v1.Inference/Generate"
)

// inference is a service whose methods are functions.
type inference struct {
	inferencev1.UnimplementedInferenceServer
	tokenize func(context.Context, *inferencev1.TokenizeRequest) (*inferencev1.TokenizeResponse, error)
	generate func(*inferencev1.GenerateRequest, grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error
}

func (i *inference) Tokenize(ctx context.Context, request *inferencev1.TokenizeRequest) (*inferencev1.TokenizeResponse, error) {
	if i.tokenize == nil {
		return &inferencev1.TokenizeResponse{TokenIds: []uint32{1}}, nil
	}
	return i.tokenize(ctx, request)
}

func (i *inference) Generate(request *inferencev1.GenerateRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
	if i.generate == nil {
		return stream.Send(&inferencev1.GenerateEvent{Offset: 1})
	}
	return i.generate(request, stream)
}

// log is a buffer that a logger and a test may use at once.
type log struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.String()
}

func (l *log) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// serve serves on loopback and connects.
func serve(t *testing.T, service *inference, serverConfig rpc.ServerConfig, clientConfig rpc.ClientConfig) (*rpc.Server, *grpc.ClientConn) {
	t.Helper()
	server := rpc.NewServer(serverConfig)
	inferencev1.RegisterInferenceServer(server, service)
	listener, err := rpc.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := rpc.Dial(listener.Addr().String(), clientConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		if err := server.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return server, conn
}

func TestPanicIsInternal(t *testing.T) {
	output := &log{}
	registry := prometheus.NewRegistry()
	_, conn := serve(t, &inference{
		tokenize: func(context.Context, *inferencev1.TokenizeRequest) (*inferencev1.TokenizeResponse, error) {
			panic("boom")
		},
		generate: func(*inferencev1.GenerateRequest, grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
			panic("bang")
		},
	}, rpc.ServerConfig{Name: "router", Logger: output.logger(), Registerer: registry}, rpc.ClientConfig{})
	client := inferencev1.NewInferenceClient(conn)
	ctx := rpc.WithRequestID(t.Context(), "request-17")
	for range 2 { // the server lives on
		_, err := client.Tokenize(ctx, &inferencev1.TokenizeRequest{})
		if status.Code(err) != codes.Internal || rpc.Reason(err) != api.ReasonPanic || strings.Contains(err.Error(), "boom") {
			t.Errorf("unary: got %v", err)
		}
		stream, err := client.Generate(ctx, &inferencev1.GenerateRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != codes.Internal || rpc.Reason(err) != api.ReasonPanic {
			t.Errorf("stream: got %v", err)
		}
	}
	for _, want := range []string{"panic=boom", "panic=bang", "TestPanicIsInternal", "request_id=request-17", "level=ERROR", "code=Internal"} {
		if !strings.Contains(output.String(), want) {
			t.Errorf("the log does not have %q", want)
		}
	}
	if got := counter(t, registry, "tandem_rpc_server_calls_total", map[string]string{"server": "router", "code": "Internal", "method": generateMethod[1:]}); got != 2 {
		t.Errorf("%v panicking streams were counted, want 2", got)
	}
}

// counter is the value of a counter with these labels.
func counter(t *testing.T, registry *prometheus.Registry, name string, labels map[string]string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
	metrics:
		for _, metric := range family.GetMetric() {
			for _, pair := range metric.GetLabel() {
				if want, ok := labels[pair.GetName()]; ok && want != pair.GetValue() {
					continue metrics
				}
			}
			sum += metric.GetCounter().GetValue()
		}
	}
	return sum
}

func TestRequestIDTravels(t *testing.T) {
	seen := make(chan string, 1)
	_, conn := serve(t, &inference{
		tokenize: func(ctx context.Context, _ *inferencev1.TokenizeRequest) (*inferencev1.TokenizeResponse, error) {
			seen <- rpc.RequestID(ctx)
			return &inferencev1.TokenizeResponse{}, nil
		},
	}, rpc.ServerConfig{}, rpc.ClientConfig{})
	client := inferencev1.NewInferenceClient(conn)
	for _, test := range []struct {
		name, want string
		ctx        context.Context
	}{
		{"none", "", t.Context()}, // it gets one
		{"from the context", "abc-1", rpc.WithRequestID(t.Context(), "abc-1")},
		{"from metadata", "xyz", metadata.AppendToOutgoingContext(rpc.WithRequestID(t.Context(), "abc"), api.HeaderRequestID, "xyz")},
		{"too long", "", metadata.AppendToOutgoingContext(t.Context(), api.HeaderRequestID, strings.Repeat("a", 129))},
		{"spaces", "", metadata.AppendToOutgoingContext(t.Context(), api.HeaderRequestID, "a b")},
	} {
		if _, err := client.Tokenize(test.ctx, &inferencev1.TokenizeRequest{}); err != nil {
			t.Fatal(err)
		}
		if got := <-seen; got != test.want && (test.want != "" || !rpc.ValidRequestID(got)) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

func TestAuthenticationComesFirst(t *testing.T) {
	type tenantKey struct{}
	const wait = 90 * time.Second
	_, conn := serve(t, &inference{
		tokenize: func(ctx context.Context, _ *inferencev1.TokenizeRequest) (*inferencev1.TokenizeResponse, error) {
			if ctx.Value(tenantKey{}) != "acme" {
				return nil, errors.New("no tenant in the context")
			}
			if _, ok := ctx.Deadline(); !ok {
				return nil, errors.New("no deadline")
			}
			return nil, rpc.Error(codes.ResourceExhausted, api.ReasonTenantLimit, "try again later", wait)
		},
	}, rpc.ServerConfig{
		Authenticate: func(ctx context.Context, _ string) (context.Context, error) {
			if len(metadata.ValueFromIncomingContext(ctx, "key")) == 0 {
				return nil, rpc.Error(codes.Unauthenticated, "NO_KEY", "send a key", 0)
			}
			return context.WithValue(ctx, tenantKey{}, "acme"), nil
		},
	}, rpc.ClientConfig{UnaryTimeout: -1})
	client := inferencev1.NewInferenceClient(conn)
	for range 5 { // refused callers learn nothing
		if _, err := client.Tokenize(t.Context(), &inferencev1.TokenizeRequest{}); status.Code(err) != codes.Unauthenticated || rpc.Reason(err) != "NO_KEY" {
			t.Fatalf("without a key: %v", err)
		}
		if err := callRaw(t, conn, tokenizeMethod, []byte{0}); status.Code(err) != codes.Unauthenticated {
			t.Fatalf("nonsense without a key: %v", err)
		}
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "key", "1")
	var trailer metadata.MD
	_, err := client.Tokenize(ctx, &inferencev1.TokenizeRequest{}, grpc.Trailer(&trailer))
	if after, ok := rpc.RetryAfter(err); status.Code(err) != codes.ResourceExhausted || rpc.Reason(err) != api.ReasonTenantLimit || !ok || after != wait {
		t.Errorf("%v, retry after %s", err, after)
	}
	if got := trailer.Get("grpc-retry-pushback-ms"); !slices.Equal(got, []string{"90000"}) {
		t.Errorf("push-back %v", got)
	}
	// Health takes no key.
	if _, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
}

func TestHealthAndStop(t *testing.T) {
	output := &log{}
	entered := make(chan struct{})
	service := &inference{generate: func(_ *inferencev1.GenerateRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
		close(entered)
		<-stream.Context().Done()
		return stream.Context().Err()
	}}
	server := rpc.NewServer(rpc.ServerConfig{Logger: output.logger()})
	inferencev1.RegisterInferenceServer(server, service)
	listener, err := rpc.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := rpc.Dial(listener.Addr().String(), rpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	health := healthv1.NewHealthClient(conn)
	check := func(service string, want healthv1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		response, err := health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: service})
		if err != nil || response.GetStatus() != want {
			t.Errorf("health of %q is %v, %v; want %v", service, response.GetStatus(), err, want)
		}
	}
	check("", healthv1.HealthCheckResponse_NOT_SERVING)
	server.SetServing(true)
	check("", healthv1.HealthCheckResponse_SERVING)
	check("tandem.inference.v1.Inference", healthv1.HealthCheckResponse_SERVING)
	check(rpc.HealthAlone, healthv1.HealthCheckResponse_SERVING)
	server.SetReady(false) // what lies behind it is away
	check("", healthv1.HealthCheckResponse_NOT_SERVING)
	check("tandem.inference.v1.Inference", healthv1.HealthCheckResponse_NOT_SERVING)
	check(rpc.HealthAlone, healthv1.HealthCheckResponse_SERVING)
	server.SetReady(true)
	check("", healthv1.HealthCheckResponse_SERVING)

	// A health watch and a reflection session must not hold up a graceful stop.
	watch, err := health.Watch(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	reflect, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := reflect.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	if response, err := reflect.Recv(); err != nil || len(response.GetListServicesResponse().GetService()) < 3 {
		t.Fatalf("reflection answers %v, %v", response, err)
	}
	stream, err := inferencev1.NewInferenceClient(conn).Generate(t.Context(), &inferencev1.GenerateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	<-entered
	// The stream does not end by itself, so the stop is cut short.
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if err := server.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Stop returned %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve returned %v", err)
	}
	if _, err := stream.Recv(); err == nil {
		t.Error("the stream lives")
	}
	for {
		response, err := watch.Recv()
		if err == nil && response.GetStatus() == healthv1.HealthCheckResponse_NOT_SERVING {
			continue
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("the watch ended with %v", err)
		}
		break
	}
	if strings.Contains(output.String(), "grpc.health") || strings.Contains(output.String(), "grpc.reflection") {
		t.Errorf("health and reflection are logged:\n%s", output)
	}
}

func TestGracefulStopIsPrompt(t *testing.T) {
	release := make(chan struct{})
	entered := make(chan struct{})
	server, conn := serve(t, &inference{generate: func(_ *inferencev1.GenerateRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
		close(entered)
		<-release
		return stream.Send(&inferencev1.GenerateEvent{Offset: 7})
	}}, rpc.ServerConfig{}, rpc.ClientConfig{})
	watch, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	stream, err := inferencev1.NewInferenceClient(conn).Generate(t.Context(), &inferencev1.GenerateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	<-entered
	stopped := make(chan error, 1)
	go func() { stopped <- server.Stop(t.Context()) }()
	for { // the watch ends while the call still runs
		if _, err := watch.Recv(); err != nil {
			break
		}
	}
	close(release)
	if event, err := stream.Recv(); err != nil || event.GetOffset() != 7 {
		t.Errorf("the running call got %v, %v", event, err)
	}
	if err := <-stopped; err != nil { // it waits for the calls and nothing else
		t.Error(err)
	}
}

// A client that keeps its connection makes its next call elsewhere, while the call
// that runs is finished where it is.
func TestLeaveSendsClientsElsewhere(t *testing.T) {
	entered, hold := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	start := func(address string, offset uint64, wait bool) (*rpc.Server, string) {
		server := rpc.NewServer(rpc.ServerConfig{})
		inferencev1.RegisterInferenceServer(server, &inference{generate: func(_ *inferencev1.GenerateRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
			if wait {
				close(entered)
				<-hold
			}
			return stream.Send(&inferencev1.GenerateEvent{Offset: offset})
		}})
		listener, err := rpc.Listen(address)
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()
		t.Cleanup(func() {
			if err := errors.Join(server.Stop(context.Background()), <-served); err != nil {
				t.Error(err)
			}
		})
		return server, listener.Addr().String()
	}
	first, address := start("127.0.0.1:0", 1, true)
	t.Cleanup(release) // before the server's, which waits for its handler
	conn, err := rpc.Dial(address, rpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := inferencev1.NewInferenceClient(conn)
	running, err := client.Generate(t.Context(), &inferencev1.GenerateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	<-entered
	state := conn.GetState()
	first.Leave()
	if !conn.WaitForStateChange(t.Context(), state) { // told to go
		t.Fatal("the connection is as it was")
	}
	start(address, 2, false) // another one, found where the first was
	next, err := client.Generate(t.Context(), &inferencev1.GenerateRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if event, err := next.Recv(); err != nil || event.GetOffset() != 2 {
		t.Errorf("the next call got %v, %v", event, err)
	}
	release()
	if event, err := running.Recv(); err != nil || event.GetOffset() != 1 {
		t.Errorf("the running call got %v, %v", event, err)
	}
}

func TestTwoServersShareARegistry(t *testing.T) {
	registry := prometheus.NewRegistry()
	for _, name := range []string{"prefill", "decode"} {
		_, conn := serve(t, &inference{}, rpc.ServerConfig{Name: name, Registerer: registry}, rpc.ClientConfig{Registerer: registry})
		if _, err := inferencev1.NewInferenceClient(conn).Tokenize(t.Context(), &inferencev1.TokenizeRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"prefill", "decode"} {
		if got := counter(t, registry, "tandem_rpc_server_calls_total", map[string]string{"server": name, "code": "OK"}); got != 1 {
			t.Errorf("%s counted %v calls, want 1", name, got)
		}
	}
}

// A call makes one short line: what failed, why, and for which request, at the level of who
// caused it.
func TestCallsAreLogged(t *testing.T) {
	for _, c := range []struct {
		err         error
		level, want string
	}{
		{nil, "DEBUG", `msg="call ended" server=decode method=tandem.inference.v1.Inference/Tokenize code=OK request_id=r-1 took=`},
		{rpc.InvalidArgument("text", "is empty"), "INFO", `msg="call failed" server=decode method=tandem.inference.v1.Inference/Tokenize code=InvalidArgument error="text: is empty" request_id=r-1 took=`},
		{context.Canceled, "INFO", "code=Canceled"},
		{context.DeadlineExceeded, "INFO", "code=DeadlineExceeded"},
		{status.Error(codes.ResourceExhausted, "no"), "INFO", "code=ResourceExhausted error=no"},
		{status.Error(codes.Unavailable, "no"), "WARN", "code=Unavailable error=no"},
		{errors.New("bang"), "ERROR", "code=Unknown error=bang"},
	} {
		output := &log{}
		_, conn := serve(t, &inference{tokenize: func(context.Context, *inferencev1.TokenizeRequest) (*inferencev1.TokenizeResponse, error) {
			return &inferencev1.TokenizeResponse{}, c.err
		}}, rpc.ServerConfig{Name: "decode", Logger: output.logger()}, rpc.ClientConfig{})
		_, _ = inferencev1.NewInferenceClient(conn).Tokenize(rpc.WithRequestID(t.Context(), "r-1"), &inferencev1.TokenizeRequest{})
		if line := output.String(); strings.Count(line, "\n") != 1 || !strings.Contains(line, "level="+c.level+" ") || !strings.Contains(line, c.want) {
			t.Errorf("%v: logged %q, want level %s and %q", c.err, line, c.level, c.want)
		}
	}
}

// Who may not call is told so before anything of the request is received.
func TestRefusedBeforeItsMessage(t *testing.T) {
	refuse := func(context.Context, string) (context.Context, error) {
		return nil, rpc.Error(codes.Unauthenticated, api.ReasonNoCredentials, "no credentials", 0)
	}
	for name, config := range map[string]rpc.ServerConfig{
		"trusting": {Authenticate: refuse},
		"limited":  {Authenticate: refuse, Limits: rpc.Limits{ReceiveBytes: 64 << 20}},
		"audited": {Authenticate: refuse, Audit: func(_ context.Context, _ string, request any, _ error) {
			if request != nil {
				t.Errorf("the audit is told of %v", request)
			}
		}},
	} {
		_, conn := serve(t, &inference{}, config, rpc.ClientConfig{})
		for _, method := range []string{tokenizeMethod, generateMethod} {
			stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, method)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.RecvMsg(&inferencev1.TokenizeResponse{}); status.Code(err) != codes.Unauthenticated || rpc.Reason(err) != api.ReasonNoCredentials {
				t.Errorf("%s, %s: %v", name, method, err)
			}
		}
	}
}
