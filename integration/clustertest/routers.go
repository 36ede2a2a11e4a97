package clustertest

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/client"
)

// Routers asks several routers, as Tandem's own commands do.
type Routers struct{ client *client.Client }

// DialRouters connects to routers for the rest of the test.
func DialRouters(t testing.TB, addresses ...string) *Routers {
	t.Helper()
	var conns []*grpc.ClientConn
	for _, address := range addresses {
		conns = append(conns, connect(t, address))
	}
	return &Routers{client.Over(conns)}
}

// Generate is Client.Generate, of an answer that may go on at another router.
func (r *Routers) Generate(ctx context.Context, request *inferencev1.GenerateRequest) (Result, error) {
	var result Result
	for event, err := range r.client.Events(ctx, request) {
		if err != nil {
			return result, err
		}
		if err := result.take(event, 0); err != nil {
			return result, err
		}
	}
	return result, nil
}

// DialServiceConfig connects to routers for the rest of the test, as any client of gRPC does
// that finds their addresses under one name and has a service config.
func DialServiceConfig(t testing.TB, config string, addresses ...string) *Client {
	t.Helper()
	name := manual.NewBuilderWithScheme("routers")
	var state resolver.State
	for _, address := range addresses {
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: address}}})
	}
	name.InitialState(state)
	conn, err := grpc.NewClient(name.Scheme()+":///", grpc.WithResolvers(name), grpc.WithDefaultServiceConfig(config), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &Client{Inference: inferencev1.NewInferenceClient(conn), Conn: conn}
}
