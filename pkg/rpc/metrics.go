package rpc

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
)

// callBuckets are the bounds of call durations, in seconds: from a hop inside a
// machine to a long generation.
var callBuckets = prometheus.ExponentialBuckets(.0005, 2, 20)

// metrics count calls. Their labels are bounded: servers see only methods that
// are registered, clients only methods of generated code, and codes are the 17
// that gRPC knows.
type metrics struct {
	started *prometheus.CounterVec
	ended   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

// newMetrics registers the metrics of one side, "server" or "client", or takes
// those that another server or client has registered at the same registerer.
func newMetrics(registerer prometheus.Registerer, side string) *metrics {
	prefix := "tandem_rpc_" + side + "_"
	return &metrics{
		started: metricset.Shared(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "calls_started_total",
			Help: "Calls that began, by method.",
		}, []string{side, "method"})),
		ended: metricset.Shared(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "calls_total",
			Help: "Calls that ended, by method and status code.",
		}, []string{side, "method", "code"})),
		seconds: metricset.Shared(registerer, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    prefix + "call_seconds",
			Help:    "Duration of calls in seconds; a stream counts from begin to end.",
			Buckets: callBuckets,
		}, []string{side, "method"})),
	}
}

// begin counts a call and returns what to call with its error at its end.
func (m *metrics) begin(name, fullMethod string) func(error) {
	method := strings.TrimPrefix(fullMethod, "/")
	m.started.WithLabelValues(name, method).Inc()
	start := time.Now()
	return func(err error) {
		m.ended.WithLabelValues(name, method, codeOf(err).String()).Inc()
		m.seconds.WithLabelValues(name, method).Observe(time.Since(start).Seconds())
	}
}

// codeOf is the code that the other side sees.
func codeOf(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	if code := s.Code(); code <= codes.Unauthenticated {
		return code
	}
	return codes.Unknown
}

func (m *metrics) unaryServer(name string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		end := m.begin(name, info.FullMethod)
		reply, err := handler(ctx, request)
		end(err)
		return reply, err
	}
}

func (m *metrics) unaryClient(name string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoker grpc.UnaryInvoker, options ...grpc.CallOption) error {
		end := m.begin(name, method)
		err := invoker(ctx, method, request, reply, conn, options...)
		end(err)
		return err
	}
}

func (m *metrics) streamClient(name string) grpc.StreamClientInterceptor {
	return func(ctx context.Context, description *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
		end := m.begin(name, method)
		// OnFinish runs exactly once, also for a stream whose caller only
		// cancels its context and never receives the error.
		options = append(options[:len(options):len(options)], grpc.OnFinish(func(err error) {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			end(err)
		}))
		return streamer(ctx, description, conn, method, options...)
	}
}

// limitMetrics count what Limits do.
type limitMetrics struct {
	endedMemory, endedSlow, endedUnread            prometheus.Counter
	closedMemory, closedIdle, closedFlood, refused prometheus.Counter
}

func newLimitMetrics(registerer prometheus.Registerer, server string) *limitMetrics {
	ended := metricset.Shared(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tandem_rpc_calls_ended_total",
		Help: "Calls ended to keep the server's limits, by reason: receive_memory (its request took the most memory), receive_time (its request did not arrive in time), not_read (the client reads nothing).",
	}, []string{"server", "why"}))
	closed := metricset.Shared(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tandem_rpc_connections_closed_total",
		Help: "Connections closed to keep the server's limits, by reason: memory (it held the most unread bytes, or bytes for ended calls), idle (it made place for another), refused (it was new, and all others had calls, or it made place for another while in its handshake), flood (it sent frames and had no call).",
	}, []string{"server", "why"}))
	return &limitMetrics{
		endedMemory: ended.WithLabelValues(server, "receive_memory"), endedSlow: ended.WithLabelValues(server, "receive_time"), endedUnread: ended.WithLabelValues(server, "not_read"),
		closedMemory: closed.WithLabelValues(server, "memory"), closedIdle: closed.WithLabelValues(server, "idle"), closedFlood: closed.WithLabelValues(server, "flood"), refused: closed.WithLabelValues(server, "refused"),
	}
}

// showLimits adds the gauges of a limiter, read when they are asked for.
func showLimits(registerer prometheus.Registerer, server string, l *limiter) {
	gauge := func(name, help string, value func() int64) {
		metricset.Shared(registerer, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: name, Help: help, ConstLabels: prometheus.Labels{"server": server},
		}, func() float64 { return float64(value()) }))
	}
	gauge("tandem_rpc_receiving_bytes", "Bytes of calls that are not answered yet: headers, parts of messages, decoded messages.", l.receiving.Load)
	gauge("tandem_rpc_sending_bytes", "Bytes of messages that clients have not read yet.", l.sending.Load)
	gauge("tandem_rpc_connections", "Client connections.", func() int64 { return int64(l.count()) })
}
