package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

const (
	// A connection that is silent for keepAlive is probed, and lost if keepAliveTimeout later
	// nothing has come.
	keepAlive, keepAliveTimeout = 10 * time.Second, 3 * time.Second
	// maxMessageBytes is the largest message taken: one token's probabilities of a whole
	// vocabulary are a few megabytes.
	maxMessageBytes = 64 << 20
)

// Client asks the routers of one mesh. It is safe for concurrent use.
type Client struct {
	conns   []*grpc.ClientConn
	routers []inferencev1.InferenceClient
	retries retries
	next    atomic.Uint32
}

// New returns a client of the routers at addresses, each "host:port" or "unix:///path". It
// connects when the first call needs it, and again whenever a connection broke. The error is
// about the addresses only. Close ends the connections.
func New(addresses []string, options ...Option) (*Client, error) {
	if len(addresses) == 0 {
		return nil, errors.New("connect to a mesh: give the address of a router, such as 127.0.0.1:7070")
	}
	s := settingsOf(options)
	var conns []*grpc.ClientConn
	for _, address := range addresses {
		conn, err := dial(address, s)
		if err != nil {
			_ = Over(conns).Close() // nothing is connected yet
			return nil, fmt.Errorf("connect to %q: %w", address, err)
		}
		conns = append(conns, conn)
	}
	return Over(conns, options...), nil
}

// Over returns a client over connections that are made already, one to each router, at least
// one. It closes them in Close. Of the options, those that say how to connect have no effect.
func Over(conns []*grpc.ClientConn, options ...Option) *Client {
	c := &Client{conns: conns, retries: settingsOf(options).retries}
	for _, conn := range conns {
		c.routers = append(c.routers, inferencev1.NewInferenceClient(conn))
	}
	if c.retries.attempts == 0 {
		c.retries.attempts = attemptsPerRouter * len(conns)
	}
	return c
}

// Close ends the connections, and with them what still runs over them.
func (c *Client) Close() error {
	var errs []error
	for _, conn := range c.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// ListModels lists the models that the mesh serves.
func (c *Client) ListModels(ctx context.Context) (*inferencev1.ListModelsResponse, error) {
	return ask(ctx, c, inferencev1.InferenceClient.ListModels, &inferencev1.ListModelsRequest{})
}

// Tokenize turns text into tokens.
func (c *Client) Tokenize(ctx context.Context, request *inferencev1.TokenizeRequest) (*inferencev1.TokenizeResponse, error) {
	return ask(ctx, c, inferencev1.InferenceClient.Tokenize, request)
}

// Detokenize turns tokens into text.
func (c *Client) Detokenize(ctx context.Context, request *inferencev1.DetokenizeRequest) (*inferencev1.DetokenizeResponse, error) {
	return ask(ctx, c, inferencev1.InferenceClient.Detokenize, request)
}

// Embed gives the vector of each of some texts.
func (c *Client) Embed(ctx context.Context, request *inferencev1.EmbedRequest) (*inferencev1.EmbedResponse, error) {
	return ask(ctx, c, inferencev1.InferenceClient.Embed, request)
}

// ask makes a call that may be made twice.
func ask[Q, A any](ctx context.Context, c *Client, call func(inferencev1.InferenceClient, context.Context, Q, ...grpc.CallOption) (A, error), request Q) (answer A, err error) {
	err = c.try(ctx, func(router inferencev1.InferenceClient) (began, further bool, err error) {
		answer, err = call(router, ctx, request)
		return false, false, err
	})
	return answer, err
}

func dial(address string, s settings) (*grpc.ClientConn, error) {
	target := address
	if !strings.HasPrefix(address, "unix:///") {
		if host, port, err := net.SplitHostPort(address); err != nil || host == "" || port == "" {
			return nil, errors.New("give host:port or unix:///path")
		}
		// The dialer resolves the name, anew for each connection.
		target = "passthrough:///" + address
	}
	options := append([]grpc.DialOption{
		grpc.WithTransportCredentials(s.transport),
		grpc.WithDisableServiceConfig(), // this package says what is tried again
		grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstPause, Multiplier: 1.6, Jitter: .2, MaxDelay: maxPause},
			MinConnectTimeout: 3 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepAlive, Timeout: keepAliveTimeout, PermitWithoutStream: true}),
	}, s.dial...)
	return grpc.NewClient(target, options...)
}
