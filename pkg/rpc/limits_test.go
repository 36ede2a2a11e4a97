package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/rpc/rpctest"
	"github.com/tandem-serving/tandem/pkg/worker/workertest"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

const (
	watchMethod = "/grpc.health.v1.Health/Watch"
	messageMost = 1 << 20
	// slack is by how much a limit may be exceeded until what exceeds it is ended.
	slack = 1 << 20
)

// gauge is the value of a gauge.
func gauge(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, family := range families {
		if family.GetName() == name {
			for _, m := range family.GetMetric() {
				sum += m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// eventually waits for what has to come, however busy the machine is.
func eventually(ok func() bool) {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !ok() {
		<-ticker.C
	}
}

// limited serves with limits, and returns how to connect otherwise.
func limited(t *testing.T, service *inference, limits rpc.Limits) (good inferencev1.InferenceClient, address string, registry *prometheus.Registry) {
	t.Helper()
	registry = prometheus.NewRegistry()
	_, conn := serve(t, service, rpc.ServerConfig{
		Name: "router", Registerer: registry, MaxReceiveBytes: messageMost, Limits: limits,
		OversizeFields: map[string]string{generateMethod: "prompt", tokenizeMethod: "text"},
	}, rpc.ClientConfig{})
	return inferencev1.NewInferenceClient(conn), conn.Target(), registry
}

// connect connects a bad client, for as long as the test lasts.
func connect(t *testing.T, address string, config rpctest.Config) *rpctest.Peer {
	t.Helper()
	_, hostport, _ := strings.Cut(address, ":///")
	if hostport == "" {
		hostport = address
	}
	peer, err := rpctest.Dial(t.Context(), hostport, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(peer.Close)
	return peer
}

// Clients that never finish their messages fill no more than the limit, and others
// are served meanwhile.
func TestUnfinishedMessages(t *testing.T) {
	const most, connections, each = 4 << 20, 3, 8
	for _, frameBytes := range []int{16 << 10, 1100} {
		t.Run(fmt.Sprint(frameBytes), func(t *testing.T) {
			good, address, registry := limited(t, &inference{}, rpc.Limits{ReceiveBytes: most})
			ended := 0
			for range connections {
				peer := connect(t, address, rpctest.Config{})
				var streams []uint32
				for i := range each {
					method := []string{tokenizeMethod, generateMethod}[i%2]
					stream, err := peer.Open(method)
					if err != nil {
						break // the server has had enough of it
					}
					streams = append(streams, stream)
					_ = peer.Send(t.Context(), stream, append(rpctest.Prefix(messageMost), make([]byte, messageMost-1)...), frameBytes, false)
					if _, err := good.Tokenize(t.Context(), &inferencev1.TokenizeRequest{Text: "good"}); err != nil {
						t.Fatalf("a good client: %v", err)
					}
					if held := gauge(t, registry, "tandem_rpc_receiving_bytes"); held > most+slack {
						t.Fatalf("%v bytes are held, more than %d", held, most)
					}
				}
				for _, stream := range streams {
					if code, over := peer.Status(stream); over && codes.Code(code) == codes.ResourceExhausted {
						ended++
					}
				}
			}
			if ended == 0 {
				t.Error("no call ended with RESOURCE_EXHAUSTED")
			}
			if counted := counter(t, registry, "tandem_rpc_calls_ended_total", map[string]string{"server": "router", "why": "receive_memory"}); counted < float64(ended) {
				t.Errorf("%v ended calls were counted, want %d", counted, ended)
			}
		})
	}
}

// What clients held is given back when they go.
func TestLimitsGiveBack(t *testing.T) {
	good, address, registry := limited(t, &inference{}, rpc.Limits{ReceiveBytes: 64 << 20})
	peer := connect(t, address, rpctest.Config{})
	for range 3 {
		stream, err := peer.Open(tokenizeMethod)
		if err != nil {
			t.Fatal(err)
		}
		if err := peer.Send(t.Context(), stream, append(rpctest.Prefix(messageMost), make([]byte, messageMost/2)...), 16<<10, false); err != nil {
			t.Fatal(err)
		}
	}
	eventually(func() bool { return gauge(t, registry, "tandem_rpc_receiving_bytes") > 3*messageMost/2 })
	for range 100 {
		if _, err := good.Tokenize(t.Context(), &inferencev1.TokenizeRequest{Text: strings.Repeat("a", 100_000)}); err != nil {
			t.Fatal(err)
		}
	}
	peer.Close()
	for _, name := range []string{"tandem_rpc_receiving_bytes", "tandem_rpc_sending_bytes"} {
		eventually(func() bool { return gauge(t, registry, name) == 0 })
	}
	eventually(func() bool { return gauge(t, registry, "tandem_rpc_connections") == 1 })
}

// A request has so long to come, and its service as long as it wants.
func TestRequestsComeInTime(t *testing.T) {
	release := make(chan struct{})
	good, address, _ := limited(t, &inference{generate: func(_ *inferencev1.GenerateRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
		<-release
		return stream.Send(&inferencev1.GenerateEvent{Offset: 7})
	}}, rpc.Limits{ReceiveBytes: 64 << 20, ReceiveTimeout: 50 * time.Millisecond, SendTimeout: 50 * time.Millisecond})
	slow, err := good.Generate(t.Context(), &inferencev1.GenerateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	peer := connect(t, address, rpctest.Config{})
	for _, method := range []string{tokenizeMethod, generateMethod, watchMethod} {
		for name, sent := range map[string][]byte{
			"nothing": nil, "a part": append(rpctest.Prefix(100), 1, 2, 3), "no end": rpctest.Prefix(0),
		} {
			stream, err := peer.Open(method)
			if err != nil {
				t.Fatal(err)
			}
			if sent != nil {
				if err := peer.Send(t.Context(), stream, sent, 16<<10, false); err != nil {
					t.Fatal(err)
				}
			}
			if code, err := peer.Await(t.Context(), stream); err != nil || codes.Code(code) != codes.DeadlineExceeded {
				t.Errorf("%s, %s sent: %v, %v", method, name, codes.Code(code), err)
			}
		}
	}
	close(release)
	if event, err := slow.Recv(); err != nil || event.GetOffset() != 7 {
		t.Errorf("a slow service: %v, %v", event, err)
	}
}

// The audit is told of no message that was not received, since it may still be written to.
func TestAuditOfWhatDidNotCome(t *testing.T) {
	audited := make(chan any, 1)
	_, conn := serve(t, &inference{}, rpc.ServerConfig{
		Name: "router", Limits: rpc.Limits{ReceiveBytes: 64 << 20, ReceiveTimeout: 50 * time.Millisecond},
		Audit: func(_ context.Context, _ string, request any, _ error) { audited <- request },
	}, rpc.ClientConfig{})
	peer := connect(t, conn.Target(), rpctest.Config{})
	for _, method := range []string{tokenizeMethod, generateMethod} {
		stream, err := peer.Open(method)
		if err != nil {
			t.Fatal(err)
		}
		if err := peer.Send(t.Context(), stream, append(rpctest.Prefix(100), 1, 2, 3), 16<<10, false); err != nil {
			t.Fatal(err)
		}
		if request := <-audited; request != nil {
			t.Errorf("%s: the audit is told of %v", method, request)
		}
	}
}

// slowWrites are connections whose writes take their time.
type slowWrites struct {
	net.Listener
	takes atomic.Int64 // nanoseconds
}

func (l *slowWrites) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return slowWriter{conn, l}, nil
}

type slowWriter struct {
	net.Conn
	of *slowWrites
}

func (w slowWriter) Write(p []byte) (int, error) {
	time.Sleep(time.Duration(w.of.takes.Load()))
	return w.Conn.Write(p)
}

// What is still being written when a call's reading is looked at is not unread.
func TestAnswerThatHasJustBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := rpc.Limits{ReceiveBytes: 64 << 20, SendTimeout: 30 * time.Second}
		mesh := workertest.NewNet(nil)
		listener := &slowWrites{Listener: mesh.Listen("router:1")}
		server := rpc.NewServer(rpc.ServerConfig{Name: "router", Limits: limits})
		inferencev1.RegisterInferenceServer(server, &inference{generate: func(_ *inferencev1.GenerateRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
			time.Sleep(limits.SendTimeout - time.Second)
			listener.takes.Store(int64(2 * time.Second))
			if err := stream.Send(&inferencev1.GenerateEvent{Offset: 7}); err != nil {
				return err
			}
			time.Sleep(3 * time.Second)
			return context.Cause(stream.Context())
		}})
		var wait sync.WaitGroup
		wait.Go(func() { _ = server.Serve(listener) })
		conn, err := mesh.Dial("router:1")
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = errors.Join(conn.Close(), server.Stop(t.Context()))
			wait.Wait()
		}()
		stream, err := inferencev1.NewInferenceClient(conn).Generate(t.Context(), &inferencev1.GenerateRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if event, err := stream.Recv(); err != nil || event.GetOffset() != 7 {
			t.Errorf("%v, %v", event, err)
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("at the end: %v", err)
		}
	})
}

// Whoever reads nothing is let go, and holds no more than the limit until then.
func TestUnreadAnswers(t *testing.T) {
	t.Run("in time", func(t *testing.T) {
		why := make(chan error, 1)
		good, address, registry := limited(t, &inference{generate: func(_ *inferencev1.GenerateRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
			for stream.Send(&inferencev1.GenerateEvent{Offset: 1, Event: &inferencev1.GenerateEvent_Tokens{Tokens: &inferencev1.TokenDelta{Text: strings.Repeat("a", 100)}}}) == nil {
			}
			why <- context.Cause(stream.Context())
			return stream.Context().Err()
		}}, rpc.Limits{ReceiveBytes: 64 << 20, SendTimeout: 50 * time.Millisecond})
		peer := connect(t, address, rpctest.Config{Unread: true})
		stream, err := peer.Open(generateMethod)
		if err != nil {
			t.Fatal(err)
		}
		if err := peer.Send(t.Context(), stream, rpctest.Prefix(0), 16<<10, true); err != nil {
			t.Fatal(err)
		}
		if err := <-why; status.Code(err) != codes.ResourceExhausted || rpc.Reason(err) != api.ReasonNotRead {
			t.Errorf("the call ended with %v", err)
		}
		if n := counter(t, registry, "tandem_rpc_calls_ended_total", map[string]string{"server": "router", "why": "not_read"}); n != 1 {
			t.Errorf("%v calls were counted", n)
		}
		if _, err := good.Tokenize(t.Context(), &inferencev1.TokenizeRequest{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("in memory", func(t *testing.T) {
		const most = 4 << 20
		reply := &inferencev1.TokenizeResponse{TokenIds: make([]uint32, 200_000)}
		good, address, registry := limited(t, &inference{tokenize: func(_ context.Context, q *inferencev1.TokenizeRequest) (*inferencev1.TokenizeResponse, error) {
			if q.GetText() == "good" {
				return &inferencev1.TokenizeResponse{}, nil
			}
			return reply, nil
		}}, rpc.Limits{ReceiveBytes: 64 << 20, SendBytes: most})
		peer := connect(t, address, rpctest.Config{Unread: true})
		for calls := 0; ; calls++ {
			stream, err := peer.Open(tokenizeMethod)
			if err == nil {
				err = peer.Send(t.Context(), stream, rpctest.Prefix(0), 16<<10, true)
			}
			if _, err := good.Tokenize(t.Context(), &inferencev1.TokenizeRequest{Text: "good"}); err != nil {
				t.Fatal(err)
			}
			if held := gauge(t, registry, "tandem_rpc_sending_bytes"); held > most+slack {
				t.Fatalf("%v bytes wait, more than %d", held, most)
			}
			if err != nil {
				break // the connection was closed
			}
			if calls > 10_000 {
				t.Fatal("the connection goes on")
			}
		}
		eventually(func() bool { return gauge(t, registry, "tandem_rpc_sending_bytes") == 0 })
	})
}

// Messages that would take many times their length are not decoded.
func TestValuesAreCounted(t *testing.T) {
	good, _, _ := limited(t, &inference{}, rpc.Limits{ReceiveBytes: 64 << 20})
	nulls := func(n int) *structpb.Value {
		list := make([]*structpb.Value, n)
		for i := range list {
			list[i] = structpb.NewNullValue()
		}
		return structpb.NewListValue(&structpb.ListValue{Values: list})
	}
	deep := structpb.NewNullValue()
	for range 200 {
		deep = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{deep}})
	}
	for _, test := range []struct {
		name  string
		value *structpb.Value
		fails bool
	}{
		{"few", nulls(1000), false},
		{"many", nulls(100_000), true},
		{"deep", deep, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			stream, err := good.Generate(t.Context(), &inferencev1.GenerateRequest{Input: &inferencev1.GenerateRequest_Conversation{Conversation: &inferencev1.Conversation{
				TemplateArguments: &structpb.Struct{Fields: map[string]*structpb.Value{"x": test.value}},
			}}})
			if err == nil {
				_, err = stream.Recv()
			}
			if test.fails != (status.Code(err) == codes.InvalidArgument && rpc.Field(err) == "conversation") || !test.fails && err != nil {
				t.Error(err)
			}
		})
	}
}

// A message that is far too long is refused by its length.
func TestFarTooLong(t *testing.T) {
	good, address, registry := limited(t, &inference{}, rpc.Limits{ReceiveBytes: 64 << 20})
	peer := connect(t, address, rpctest.Config{})
	for _, method := range []string{tokenizeMethod, generateMethod} {
		stream, err := peer.Open(method)
		if err != nil {
			t.Fatal(err)
		}
		if err := peer.Send(t.Context(), stream, rpctest.Prefix(120<<20), 16<<10, false); err != nil {
			t.Fatal(err)
		}
		if code, err := peer.Await(t.Context(), stream); err != nil || codes.Code(code) != codes.ResourceExhausted {
			t.Errorf("%s: %v, %v", method, codes.Code(code), err)
		}
	}
	_, err := good.Tokenize(t.Context(), &inferencev1.TokenizeRequest{Text: strings.Repeat("a", messageMost+1)})
	if status.Code(err) != codes.InvalidArgument || rpc.Field(err) != "text" {
		t.Errorf("a little too long: %v", err)
	}
	eventually(func() bool { return gauge(t, registry, "tandem_rpc_receiving_bytes") == 0 })
}

// Calls that only wait, with long headers, are bounded as well.
func TestOpenCallsAreCounted(t *testing.T) {
	const most = 4 << 20
	good, address, registry := limited(t, &inference{}, rpc.Limits{ReceiveBytes: most})
	long := strings.Repeat("h", 30<<10)
	request, err := proto.Marshal(&healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		peer := connect(t, address, rpctest.Config{})
		for range 200 {
			stream, err := peer.Open(watchMethod, "x-long", long)
			if err != nil {
				break // the server has had enough of it
			}
			_ = peer.Send(t.Context(), stream, append(rpctest.Prefix(len(request)), request...), 16<<10, true)
		}
		if _, err := good.Tokenize(t.Context(), &inferencev1.TokenizeRequest{}); err != nil {
			t.Fatal(err)
		}
		if held := gauge(t, registry, "tandem_rpc_receiving_bytes"); held > most+slack {
			t.Fatalf("%v bytes are held, more than %d", held, most)
		}
	}
}

// One connection too many takes the place of an idle one, or is told why it cannot.
func TestConnectionsAreBounded(t *testing.T) {
	_, address, registry := limited(t, &inference{}, rpc.Limits{ReceiveBytes: 64 << 20, Connections: 3})
	idle := connect(t, address, rpctest.Config{})
	if _, err := idle.Open("/grpc.health.v1.Health/Watch"); err != nil { // for which nobody needs a key
		t.Fatal(err)
	}
	eventually(func() bool { return gauge(t, registry, "tandem_rpc_receiving_bytes") > 8<<10 })
	busy := func() *rpctest.Peer {
		peer := connect(t, address, rpctest.Config{})
		if _, err := peer.Open(generateMethod); err != nil {
			t.Fatal(err)
		}
		return peer
	}
	first := busy()
	second := busy()
	eventually(func() bool { return gauge(t, registry, "tandem_rpc_receiving_bytes") > 3*8<<10 })
	third := busy()
	<-idle.Done()
	eventually(func() bool { return gauge(t, registry, "tandem_rpc_receiving_bytes") > 3*8<<10 })
	refused := connect(t, address, rpctest.Config{})
	<-refused.Done()
	if !strings.Contains(refused.Goodbye(), "too many connections: router allows no more") {
		t.Errorf("the server says %q", refused.Goodbye())
	}
	for _, peer := range []*rpctest.Peer{first, second, third} {
		select {
		case <-peer.Done():
			t.Error("a connection with a call was closed")
		default:
		}
	}
}

// A connection without a call may not keep the server busy with other frames; one with a call may send as many.
func TestFloodsWithoutACall(t *testing.T) {
	_, address, registry := limited(t, &inference{}, rpc.Limits{ReceiveBytes: 64 << 20})
	flood := connect(t, address, rpctest.Config{})
	if _, err := flood.Open("/grpc.health.v1.Health/Watch"); err != nil { // which is no call here
		t.Fatal(err)
	}
	for flood.Settings(1000) == nil {
		select {
		case <-flood.Done():
		default:
			continue
		}
		break
	}
	<-flood.Done()
	few, busy := connect(t, address, rpctest.Config{}), connect(t, address, rpctest.Config{})
	if _, err := busy.Open(generateMethod); err != nil {
		t.Fatal(err)
	}
	eventually(func() bool { return gauge(t, registry, "tandem_rpc_receiving_bytes") > 8<<10 })
	for peer, n := range map[*rpctest.Peer]int{few: 500, busy: 5000} {
		if err := peer.Settings(n); err != nil {
			t.Fatal(err)
		}
		stream, err := peer.Open(generateMethod) // behind all of them
		if err != nil {
			t.Fatal(err)
		}
		if err := peer.Send(t.Context(), stream, rpctest.Prefix(0), 1, true); err != nil {
			t.Fatal(err)
		}
		if _, err := peer.Await(t.Context(), stream); err != nil {
			t.Errorf("after %d frames: %v", n, err)
		}
	}
}

// What a client sends in answer to answers, when their calls are over, is no flood.
func TestManyShortCallsAreNoFlood(t *testing.T) {
	good, _, registry := limited(t, &inference{}, rpc.Limits{ReceiveBytes: 64 << 20})
	for i := range 3000 {
		if _, err := good.Tokenize(t.Context(), &inferencev1.TokenizeRequest{}); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	if n := gauge(t, registry, "tandem_rpc_connections"); n != 1 {
		t.Errorf("%v connections", n)
	}
}

// A browser or curl that is pointed at the gRPC port is told where to go.
func TestHTTP1GetsWords(t *testing.T) {
	_, address, registry := limited(t, &inference{}, rpc.Limits{ReceiveBytes: messageMost, SendBytes: messageMost, Connections: 4})
	_, hostport, _ := strings.Cut(address, ":///")
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		request, err := http.NewRequestWithContext(t.Context(), method, "http://"+hostport+"/v1/models", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), "speaks gRPC") || !strings.Contains(string(text), "--http") {
			t.Errorf("%s: %d %q %v", method, response.StatusCode, text, err)
		}
	}
	// Its connection does not count any more; only the good client's may.
	eventually(func() bool { return gauge(t, registry, "tandem_rpc_connections") <= 1 })
}
