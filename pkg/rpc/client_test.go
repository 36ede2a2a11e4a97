package rpc_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tandem-serving/tandem/pkg/rpc"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestClientComesBack(t *testing.T) {
	registry := prometheus.NewRegistry()
	path := t.TempDir() + "/s.sock"
	conn, err := rpc.Dial("unix://"+path, rpc.ClientConfig{Name: "router", Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := inferencev1.NewInferenceClient(conn)
	if _, err := client.Tokenize(t.Context(), &inferencev1.TokenizeRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("without a server: %v", err)
	}
	for range 2 {
		listener, err := rpc.Listen("unix://" + path)
		if err != nil {
			t.Fatal(err)
		}
		server := rpc.NewServer(rpc.ServerConfig{})
		inferencev1.RegisterInferenceServer(server, &inference{})
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()
		if _, err := client.Tokenize(t.Context(), &inferencev1.TokenizeRequest{}, grpc.WaitForReady(true)); err != nil {
			t.Error(err)
		}
		if err := server.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
	if got := counter(t, registry, "tandem_rpc_client_calls_total", map[string]string{"client": "router", "code": "OK"}); got != 2 {
		t.Errorf("%v calls were counted, want 2", got)
	}
}
