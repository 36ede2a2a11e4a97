package rpc

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	middleware "github.com/grpc-ecosystem/go-grpc-middleware/v2"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/reflection"
)

// Defaults of ServerConfig and ClientConfig.
const (
	// DefaultMaxReceiveBytes is the largest message taken, in bytes.
	DefaultMaxReceiveBytes = 4 << 20
	// OversizeMargin is how much longer than MaxReceiveBytes a message may be that is
	// received only to be refused by the name of a field; see
	// ServerConfig.OversizeFields. A longer one is refused as soon as its length is
	// known, with RESOURCE_EXHAUSTED: grpc-go has no place to say anything else before
	// it has a whole message, and a margin is memory that anybody may fill.
	OversizeMargin = 1 << 20
)

const (
	// unaryTimeout is the deadline that clients and servers give unary calls that have
	// none.
	unaryTimeout = time.Minute
	// KeepAlive is how long a connection is silent, also without calls, before either
	// side probes it. grpc-go allows clients no less.
	KeepAlive = 10 * time.Second
	// KeepAliveTimeout is how long a probe may go unanswered before the connection
	// counts as broken.
	KeepAliveTimeout = 3 * time.Second
	// maxStreams is the most calls at a time on one connection of a server; more wait
	// in the client.
	maxStreams = 10_000
	// maxHeaderBytes bounds the headers of a call.
	maxHeaderBytes = 64 << 10
	// handshakeTimeout bounds the set-up of a connection.
	handshakeTimeout = 10 * time.Second
	// hardStopGrace is how long handlers may ignore the end of their context.
	hardStopGrace = 5 * time.Second
)

// ServerConfig says how a server is built. The zero value works.
type ServerConfig struct {
	// Name is the server's label in metrics and log lines, like "router".
	Name string
	// Logger gets a line for each call that ends. Nil: none.
	Logger *slog.Logger
	// Unlogged are full methods whose calls log for themselves, since they last as
	// long as their peers.
	Unlogged []string
	// MaxReceiveBytes is the largest message taken. 0: DefaultMaxReceiveBytes.
	MaxReceiveBytes int
	// Registerer gets the metrics. Several servers may share one. Nil: none.
	Registerer prometheus.Registerer
	// Credentials make connections secure, such as identity.Source.Server. With them a call is
	// refused unless Callers has the role of its peer's certificate. Nil: connections are not
	// encrypted, and everybody has every role.
	Credentials credentials.TransportCredentials
	// Authenticate checks a call and returns the context to go on with, or an
	// error made by Error. Health checks do not pass it. Nil: everybody may call.
	Authenticate func(ctx context.Context, fullMethod string) (context.Context, error)
	// Audit is told of each call once it has ended, also of one that Authenticate refused: with the
	// context that Authenticate returned, the first message received (nil: none, as of every call
	// that was refused), and the call's error. Health checks are left out. Nil: nobody is told.
	Audit func(ctx context.Context, fullMethod string, request any, err error)
	// OversizeFields maps a full method, like
	// "/tandem.inference.v1.Inference/Generate", to the field of its request to
	// name when a message is over MaxReceiveBytes. A method without one names
	// "request". It is for servers that strangers call: messages that are longer by up
	// to OversizeMargin are then received and dropped undecoded. Without any, a message
	// over the limit is RESOURCE_EXHAUSTED as soon as its length is known.
	OversizeFields map[string]string
	// Limits bound what peers can make the server hold. The zero value: nothing does.
	Limits Limits
	// Codec encodes and decodes all messages of the server, those of health and
	// reflection included. Nil: grpc-go's for protobuf.
	Codec encoding.CodecV2
	// WindowBytes fixes the flow-control window of connections and streams; with
	// it grpc-go does not measure the link. 0: grpc-go grows windows up to 16 MiB
	// as the link needs, which suits small messages.
	WindowBytes int32
	// BufferBytes is the size of a connection's read buffer and of its write
	// buffer; the latter is given back when a connection has nothing to send.
	// 0: 32 KiB, right for small messages to many clients; for bulk data between
	// few machines 256 KiB to 1 MiB. With Limits the read buffer is 1 KiB in any case.
	BufferBytes int
	// UnbufferedReads leaves the read buffer out: right for the connections of a
	// listener that read ahead by themselves.
	UnbufferedReads bool
	// BufferPool gives the memory that messages are received into. Nil: grpc-go's.
	BufferPool mem.BufferPool
}

// Server is a gRPC server with the chain that the package comment describes,
// health and reflection. It implements grpc.ServiceRegistrar. Until
// SetServing(true), health says NOT_SERVING.
//
// Connections that are silent for ten seconds are probed and dropped if three
// more bring no answer; clients may probe every five seconds, also without
// calls.
//
// With Limits it knows what each connection and each call holds: it reads the headers
// of the HTTP/2 frames that pass. A call counts as receiving until its handler sends
// something, or returns; health and reflection for as long as they last.
//
// All methods are safe for concurrent use, RegisterService only before
// Serve.
type Server struct {
	grpc     *grpc.Server
	health   *health.Server
	decoder  *decoder
	limit    *ConnectionLimit // nil: the listeners may have one
	stopping context.Context  // ends when Leave or Stop begins
	stop     context.CancelFunc

	drain   sync.Once
	drained chan struct{} // closed when grpc-go's graceful stop is over

	mu       sync.Mutex
	services []string
	serving  bool
	unready  bool
	stopped  bool
}

var _ grpc.ServiceRegistrar = (*Server)(nil)

// NewServer builds a server. It starts nothing.
func NewServer(cfg ServerConfig) *Server {
	cfg = cfg.withDefaults()
	s := &Server{
		health:  health.NewServer(),
		decoder: &decoder{maxReceiveBytes: cfg.MaxReceiveBytes, oversizeFields: cfg.OversizeFields},
		drained: make(chan struct{}),
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	unary, stream := s.chains(cfg)
	options := []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(unary...),
		grpc.StreamInterceptor(stream),
		grpc.ForceServerCodecV2(newCodec(cfg.Codec, cfg.MaxReceiveBytes)),
		grpc.MaxRecvMsgSize(cfg.receiveLimit()),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: KeepAlive, Timeout: KeepAliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: KeepAlive / 2, PermitWithoutStream: true}),
	}
	if cfg.WindowBytes > 0 {
		options = append(options, grpc.StaticStreamWindowSize(cfg.WindowBytes), grpc.StaticConnWindowSize(cfg.WindowBytes))
	}
	if cfg.BufferBytes > 0 {
		options = append(options, grpc.ReadBufferSize(cfg.BufferBytes), grpc.WriteBufferSize(cfg.BufferBytes))
	}
	transport := insecure.NewCredentials()
	if cfg.Credentials != nil {
		transport = countedHandshakes{cfg.Credentials}
	}
	if cfg.Limits.ReceiveBytes > 0 {
		limits := newLimiter(cfg.Limits, newLimitMetrics(cfg.Registerer, cfg.Name))
		showLimits(cfg.Registerer, cfg.Name, limits)
		if cfg.Credentials != nil { // the limiter knows a connection from the end of its handshake on
			s.limit = NewConnectionLimit(2*limits.limits.Connections, cfg.Limits.ConnectionsBy, cfg.Logger)
			s.limit.count = limits.metrics.refused.Inc
		}
		transport = meteredCredentials{TransportCredentials: transport, limiter: limits}
		options = append(options, grpc.InTapHandle(limits.begin))
	}
	if cfg.Credentials != nil || cfg.Limits.ReceiveBytes > 0 {
		options = append(options, grpc.Creds(transport))
	}
	if cfg.UnbufferedReads || cfg.Limits.ReceiveBytes > 0 {
		options = append(options, grpc.ReadBufferSize(0))
	}
	if cfg.BufferPool != nil {
		options = append(options, experimental.BufferPool(cfg.BufferPool))
	}
	s.grpc = grpc.NewServer(options...)
	s.setHealth()
	healthv1.RegisterHealthServer(s, s.health)
	reflection.Register(s)
	return s
}

func (cfg ServerConfig) withDefaults() ServerConfig {
	cfg.Name = cmp.Or(cfg.Name, "server")
	cfg.Limits.ConnectionsBy = cmp.Or(cfg.Limits.ConnectionsBy, cfg.Name)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.MaxReceiveBytes <= 0 {
		cfg.MaxReceiveBytes = DefaultMaxReceiveBytes
	}
	return cfg
}

// receiveLimit is the longest message that grpc-go takes.
func (cfg ServerConfig) receiveLimit() int {
	if len(cfg.OversizeFields) > 0 {
		return cfg.MaxReceiveBytes + OversizeMargin
	}
	return cfg.MaxReceiveBytes
}

// RegisterService registers a service, before Serve. Generated code calls it.
func (s *Server) RegisterService(description *grpc.ServiceDesc, implementation any) {
	s.grpc.RegisterService(s.decoder.wrapUnary(description), implementation)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.services = append(s.services, description.ServiceName)
	s.setHealth()
}

// GetServiceInfo lists the registered services, for reflection.
func (s *Server) GetServiceInfo() map[string]grpc.ServiceInfo {
	return s.grpc.GetServiceInfo()
}

// SetServing sets what health says, of the server and of each service. After
// Stop it stays NOT_SERVING.
func (s *Server) SetServing(serving bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving = serving && !s.stopped
	s.setHealth()
}

// HealthAlone is the name by which health tells of the server alone, whatever SetReady says:
// for who sends it calls that it may hold for a while, or refuse with when to try again.
const HealthAlone = "server"

// SetReady sets whether what lies behind the server can answer calls, as it can from the
// start: while it cannot, health says NOT_SERVING of all but HealthAlone.
func (s *Server) SetReady(ready bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unready = !ready
	s.setHealth()
}

// setHealth tells health; the caller holds mu.
func (s *Server) setHealth() {
	state := func(serving bool) healthv1.HealthCheckResponse_ServingStatus {
		if serving {
			return healthv1.HealthCheckResponse_SERVING
		}
		return healthv1.HealthCheckResponse_NOT_SERVING
	}
	s.health.SetServingStatus(HealthAlone, state(s.serving))
	s.health.SetServingStatus("", state(s.serving && !s.unready))
	for _, service := range s.services {
		s.health.SetServingStatus(service, state(s.serving && !s.unready))
	}
}

// Serve accepts connections until Leave or Stop, which close the listener, and
// returns nil when the calls have ended. It may be called for several listeners.
func (s *Server) Serve(listener net.Listener) error {
	if s.limit != nil {
		listener = s.limit.Listener(listener)
	}
	err := s.grpc.Serve(listener)
	if s.stopping.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	}
	return nil
}

// Leave begins what Stop ends, and does not wait: it says NOT_SERVING, closes the
// listeners, and tells the clients of the connections it has to make their next calls
// elsewhere. Calls that run go on, and so does one that was on its way when its client
// was told: it reaches its handler, which may refuse it. Since nobody can connect any
// more, a client whose connection breaks from here on does not come back to this
// server. Stop has to follow.
func (s *Server) Leave() {
	s.mu.Lock()
	s.stopped, s.serving = true, false
	s.setHealth()
	s.mu.Unlock()
	s.stop()
	s.drain.Do(func() {
		go func() {
			defer close(s.drained)
			s.grpc.GracefulStop()
		}()
	})
}

// Stop does what Leave does, if that was not called, and waits for the calls that
// run. When ctx ends first it breaks the connections, which ends the contexts of
// their calls, and returns ctx's error. A handler that ignores the end of its
// context for five seconds is left behind and the error says so.
func (s *Server) Stop(ctx context.Context) error {
	s.Leave()
	select {
	case <-s.drained:
		return nil
	case <-ctx.Done():
	}
	broken := make(chan struct{})
	go func() {
		defer close(broken)
		s.grpc.Stop()
		<-s.drained
	}()
	timer := time.NewTimer(hardStopGrace)
	defer timer.Stop()
	select {
	case <-broken:
		return fmt.Errorf("stop: calls were cut off: %w", ctx.Err())
	case <-timer.C:
		return fmt.Errorf("stop: handlers still run %s after their connections were closed: %w", hardStopGrace, ctx.Err())
	}
}

// endWithServer ends the context of a health watch or a reflection session when
// the server stops.
func (s *Server) endWithServer(server any, stream grpc.ServerStream, handler grpc.StreamHandler) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	err := handler(server, &endingStream{&middleware.WrappedServerStream{ServerStream: stream, WrappedContext: ctx}})
	if s.stopping.Err() != nil && stream.Context().Err() == nil {
		return Error(codes.Unavailable, "STOPPING", "the server is stopping: connect again", 0)
	}
	return err
}
