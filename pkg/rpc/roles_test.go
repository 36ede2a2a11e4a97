package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/identity/authority"
	"github.com/tandem-serving/tandem/pkg/rpc"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// TestCallersOfEveryMethod: nobody may call what nobody thought of.
func TestCallersOfEveryMethod(t *testing.T) {
	want := map[string]string{
		"tandem.inference.v1.Inference/*":          "all",
		"tandem.control.v1.Requests/*":             "all",
		"tandem.control.v1.Control/*":              "operator",
		"tandem.control.v1.Keys/*":                 "operator",
		"tandem.worker.v1.Worker/Identify":         "router operator",
		"tandem.worker.v1.Worker/*":                "router",
		"tandem.worker.v1.Prefill/*":               "router",
		"tandem.worker.v1.Decode/*":                "router",
		"tandem.kvtransfer.v1.KVTransfer/*":        "prefill kvtransfer",
		"tandem.kvtransfer.v1.BlockStore/*":        "prefill",
		"tandem.kvtransfer.v1.Unknown/Do":          "",
		"grpc.health.v1.Health/Check":              "all",
		"grpc.channelz.v1.Channelz/GetTopChannels": "",
	}
	methods := []string{"tandem.kvtransfer.v1.Unknown/Do", "grpc.health.v1.Health/Check", "grpc.channelz.v1.Channelz/GetTopChannels"}
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				if strings.HasPrefix(string(file.Package()), "tandem.") {
					methods = append(methods, fmt.Sprintf("%s/%s", service.FullName(), service.Methods().Get(j).Name()))
				}
			}
		}
		return true
	})
	for _, method := range methods {
		service, _, _ := strings.Cut(method, "/")
		expected, listed := want[method]
		if !listed {
			if expected, listed = want[service+"/*"]; !listed {
				t.Errorf("%s: say here who may call it", method)
			}
		}
		roles, all := rpc.Callers("/" + method)
		got := "all"
		if !all {
			got = strings.Trim(fmt.Sprint(roles), "[]")
		}
		if got != expected {
			t.Errorf("%s may be called by %q, want %q", method, got, expected)
		}
	}
}

// routerSource is the certificate of a router at 127.0.0.1.
func routerSource(t *testing.T) *identity.Source {
	t.Helper()
	folder := t.TempDir()
	a, err := authority.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Issue(folder+"/router", authority.Request{Identity: identity.Identity{Role: identity.Router, Name: "router"}, Hosts: []string{"127.0.0.1"}}, 0o600); err != nil {
		t.Fatal(err)
	}
	source, err := identity.Open(authority.Config(folder+"/router"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// refused is how many connections a server refused, since others had its places.
func refused(t *testing.T, registry *prometheus.Registry) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if label.GetName() == "why" && label.GetValue() == "refused" {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}

// announced are credentials of a server that say when a handshake has begun.
type announced struct {
	credentials.TransportCredentials
	begun chan<- struct{}
}

func (a announced) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	a.begun <- struct{}{}
	return a.TransportCredentials.ServerHandshake(raw)
}

// TestSlowHandshakes: connections that stay silent before their handshake are bounded in number, and
// keep nobody out: the oldest makes place for another.
func TestSlowHandshakes(t *testing.T) {
	const most = 4
	for name, config := range map[string]rpc.ServerConfig{
		"by its limits":                 {Limits: rpc.Limits{ReceiveBytes: 1 << 20, Connections: most / 2}},
		"by the limit of its listeners": {},
	} {
		t.Run(name, func(t *testing.T) {
			source := routerSource(t)
			listener, err := rpc.Listen("127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			if config.Limits.Connections == 0 {
				listener = rpc.NewConnectionLimit(most, "--some-flag", nil).Listener(listener)
			}
			begun := make(chan struct{}, most+2)
			registry := prometheus.NewRegistry()
			config.Credentials, config.Registerer = announced{source.Server(false), begun}, registry
			server := rpc.NewServer(config)
			server.SetServing(true)
			served := make(chan error, 1)
			go func() { served <- server.Serve(listener) }()
			t.Cleanup(func() { // after the connections are closed
				ended, cancel := context.WithCancel(context.Background())
				cancel()
				_ = server.Stop(ended)
				if err := <-served; err != nil {
					t.Error(err)
				}
			})
			ended := make(chan error, most+1)
			for i := range most + 1 {
				conn, err := net.Dial("tcp", listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
				go func() {
					_, err := conn.Read(make([]byte, 1))
					ended <- err
				}()
				if i == most {
					break
				}
				select {
				case <-begun:
				case <-ended:
					t.Fatalf("connection %d of %d is closed", i+1, most)
				}
			}
			if err := <-ended; err == nil { // of the one too many
				t.Fatal("a server that speaks first")
			}
			if want := min(1, config.Limits.Connections); refused(t, registry) != float64(want) {
				t.Errorf("%v connections count as refused, want %d", refused(t, registry), want)
			}
			conn, err := rpc.Dial(listener.Addr().String(), rpc.ClientConfig{Credentials: source.Client()})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if _, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
				t.Errorf("while they are silent: %v", err)
			}
		})
	}
}

// TestMeteredTLS: a server that counts what its connections hold does so below TLS, whatever is
// sent, and finds out who calls.
func TestMeteredTLS(t *testing.T) {
	source := routerSource(t)
	const events = 200
	service := &inference{generate: func(_ *inferencev1.GenerateRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
		for i := range events {
			text := strings.Repeat("x", i*i) // up to 40 kB: more than what TLS writes at once
			if err := stream.Send(&inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_Tokens{Tokens: &inferencev1.TokenDelta{Text: text}}}); err != nil {
				return err
			}
		}
		return nil
	}}
	_, conn := serve(t, service, rpc.ServerConfig{Credentials: source.Server(false), Limits: rpc.Limits{ReceiveBytes: 64 << 20, SendBytes: 64 << 20}}, rpc.ClientConfig{Credentials: source.Client()})
	stream, err := inferencev1.NewInferenceClient(conn).Generate(t.Context(), &inferencev1.GenerateRequest{Input: &inferencev1.GenerateRequest_Prompt{Prompt: strings.Repeat("y", 1<<20)}})
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) && i == events {
			break
		}
		if err != nil || len(event.GetTokens().GetText()) != i*i {
			t.Fatalf("event %d has %d bytes: %v", i, len(event.GetTokens().GetText()), err)
		}
	}
	_, plain := serve(t, service, rpc.ServerConfig{Credentials: source.Server(false)}, rpc.ClientConfig{})
	if _, err := inferencev1.NewInferenceClient(plain).Tokenize(t.Context(), &inferencev1.TokenizeRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("in plain text: %v", err)
	}
}
