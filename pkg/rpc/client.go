package rpc

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"

	"github.com/tandem-serving/tandem/pkg/api"
)

// ClientConfig says how a client connection is built. The zero value works.
type ClientConfig struct {
	// Name is the client's label in metrics and log lines, like "router".
	Name string
	// Logger gets a line at debug for each call that ends. Nil: none.
	Logger *slog.Logger
	// MaxReceiveBytes is the largest message taken. 0: DefaultMaxReceiveBytes.
	MaxReceiveBytes int
	// Registerer gets the metrics. Several connections may share one. Nil: none.
	Registerer prometheus.Registerer
	// UnaryTimeout is the deadline of unary calls that have none. 0: a
	// minute; below 0: none.
	UnaryTimeout time.Duration
	// Credentials make the connection secure, such as identity.Source.Peer. Nil: it is not
	// encrypted.
	Credentials credentials.TransportCredentials
	// Codec encodes and decodes all messages. Nil: grpc-go's for protobuf.
	Codec encoding.CodecV2
	// WindowBytes and BufferBytes are as in ServerConfig.
	WindowBytes int32
	BufferBytes int
	// APIKey is sent with each call, as a bearer token; empty: none.
	APIKey string
	// Dialer connects to an address, "host:port" or "unix:///path". Nil: the
	// operating system, with its own choice of buffers.
	Dialer func(ctx context.Context, address string) (net.Conn, error)
}

// Dial makes a connection to "host:port" or "unix:///path". It connects when
// the first call needs it and again whenever the connection broke, waiting 100
// ms after the first failure and at most 2 s after many; host names are resolved
// anew each time. Calls fail with UNAVAILABLE at once while there is no
// connection, unless they say grpc.WaitForReady.
//
// The error is only about the address. The caller closes the connection.
func Dial(address string, cfg ClientConfig) (*grpc.ClientConn, error) {
	target, err := target(address)
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	unary, stream := clientChains(cfg)
	callOptions := []grpc.CallOption{grpc.MaxCallRecvMsgSize(cfg.MaxReceiveBytes)}
	if cfg.Codec != nil {
		callOptions = append(callOptions, grpc.ForceCodecV2(cfg.Codec))
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(cfg.Credentials),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
		grpc.WithChainUnaryInterceptor(unary...),
		grpc.WithChainStreamInterceptor(stream...),
		grpc.WithDefaultCallOptions(callOptions...),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: .2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 3 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: KeepAlive, Timeout: KeepAliveTimeout, PermitWithoutStream: true,
		}),
	}
	if cfg.WindowBytes > 0 {
		options = append(options, grpc.WithStaticStreamWindowSize(cfg.WindowBytes), grpc.WithStaticConnWindowSize(cfg.WindowBytes))
	}
	if cfg.BufferBytes > 0 {
		options = append(options, grpc.WithReadBufferSize(cfg.BufferBytes), grpc.WithWriteBufferSize(cfg.BufferBytes))
	}
	if cfg.APIKey != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearerToken(cfg.APIKey)))
	}
	if cfg.Dialer != nil {
		options = append(options, grpc.WithContextDialer(cfg.Dialer))
	}
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to %q: %w", address, err)
	}
	return conn, nil
}

// bearerToken is what a client shows that it may call.
type bearerToken string

// GetRequestMetadata is the header of a call.
func (t bearerToken) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(t)}, nil
}

// RequireTransportSecurity lets it go over a connection without TLS: within one machine there is
// none.
func (bearerToken) RequireTransportSecurity() bool { return false }

// target is grpc-go's name for an address. It leaves host names to the dialer:
// grpc-go's own resolver would not look again for thirty seconds after a worker
// came back under another address.
func target(address string) (string, error) {
	if path, ok := strings.CutPrefix(address, api.UnixScheme); ok {
		if !filepath.IsAbs(path) {
			return "", fmt.Errorf("connect to %q: the path must be absolute, as in unix:///run/tandem.sock", address)
		}
		return address, nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" {
		return "", fmt.Errorf("connect to %q: give host:port or unix:///path", address)
	}
	return "passthrough:///" + address, nil
}

func (cfg ClientConfig) withDefaults() ClientConfig {
	cfg.Name = cmp.Or(cfg.Name, "client")
	cfg.Credentials = cmp.Or(cfg.Credentials, insecure.NewCredentials())
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.MaxReceiveBytes <= 0 {
		cfg.MaxReceiveBytes = DefaultMaxReceiveBytes
	}
	cfg.UnaryTimeout = cmp.Or(cfg.UnaryTimeout, unaryTimeout)
	return cfg
}

// clientChains are the interceptors of a client, outermost first, in the order
// of the package comment.
func clientChains(cfg ClientConfig) ([]grpc.UnaryClientInterceptor, []grpc.StreamClientInterceptor) {
	metrics := newMetrics(cfg.Registerer, "client")
	lines := logCalls(cfg.Logger.With(slog.String("client", cfg.Name)), func(codes.Code) slog.Level { return slog.LevelDebug })
	business := selector.MatchFunc(func(_ context.Context, call interceptors.CallMeta) bool {
		return !isInfrastructure(call.FullMethod())
	})
	unary := []grpc.UnaryClientInterceptor{
		contextUnaryClient,
		metrics.unaryClient(cfg.Name),
		selector.UnaryClientInterceptor(interceptors.UnaryClientInterceptor(lines), business),
	}
	if cfg.UnaryTimeout > 0 {
		unary = append(unary, timeoutUnaryClient(cfg.UnaryTimeout))
	}
	return unary, []grpc.StreamClientInterceptor{
		contextStreamClient,
		metrics.streamClient(cfg.Name),
		selector.StreamClientInterceptor(callLogs(lines).streamClient, business),
	}
}

func timeoutUnaryClient(timeout time.Duration) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoker grpc.UnaryInvoker, options ...grpc.CallOption) error {
		if _, ok := ctx.Deadline(); ok {
			return invoker(ctx, method, request, reply, conn, options...)
		}
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return invoker(ctx, method, request, reply, conn, options...)
	}
}
