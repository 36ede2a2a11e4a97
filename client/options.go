package client

import (
	"context"
	"crypto/tls"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Option changes how a client connects, or how long it tries.
type Option func(*settings)

type settings struct {
	transport credentials.TransportCredentials
	dial      []grpc.DialOption
	retries   retries
}

func settingsOf(options []Option) settings {
	s := settings{transport: insecure.NewCredentials(), retries: retries{longest: defaultLongestWait}}
	for _, o := range options {
		o(&s)
	}
	return s
}

// WithToken sends an API key, or a token of an identity provider, with each call. Without TLS
// it crosses the network in the clear.
func WithToken(token string) Option {
	return WithDialOptions(grpc.WithPerRPCCredentials(bearer(token)))
}

// WithTLSConfig encrypts the connections. RootCAs holds the authority of a mesh that made its
// own; nil means those of the system.
func WithTLSConfig(config *tls.Config) Option {
	return func(s *settings) { s.transport = credentials.NewTLS(config) }
}

// WithAttempts says how many tries a call has at most without progress, at all routers together: an
// answer that has got further is counted anew. A try to resume an answer is up to three calls: at the
// router that it came from, at another one, and to make it anew. 1 means that nothing is sent twice. The
// default is five times the number of routers.
func WithAttempts(n int) Option {
	return func(s *settings) { s.retries.attempts = max(n, 1) }
}

// WithLongestWait says how long a router may ask the client to wait before it sends a call
// again: a refusal that asks for more is returned. No pause of the client's own is longer. The
// default is 30 s; with 0 the client never waits, and asks each router once at most without progress.
func WithLongestWait(d time.Duration) Option {
	return func(s *settings) { s.retries.longest = max(d, 0) }
}

// WithDialOptions adds options of gRPC, such as interceptors for metrics and traces, or a
// dialer.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(s *settings) { s.dial = append(s.dial, options...) }
}

// bearer is what a client shows that it may call.
type bearer string

// GetRequestMetadata is the header of a call.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity lets it go over a connection without TLS: within one machine there is
// none.
func (bearer) RequireTransportSecurity() bool { return false }
