package rpc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// logCalls logs a line for each call that ends: what an operator needs, no more.
func logCalls(logger *slog.Logger, level func(codes.Code) slog.Level) interceptors.CommonReportableFunc {
	return func(ctx context.Context, call interceptors.CallMeta) (interceptors.Reporter, context.Context) {
		return callLog{ctx: ctx, logger: logger, level: level, method: strings.TrimPrefix(call.FullMethod(), "/")}, ctx
	}
}

type callLog struct {
	interceptors.NoopReporter
	ctx    context.Context
	logger *slog.Logger
	level  func(codes.Code) slog.Level
	method string
}

func (c callLog) PostCall(err error, took time.Duration) {
	if errors.Is(err, io.EOF) { // a stream's good end
		err = nil
	}
	code, message := codeOf(err), "call ended"
	attributes := []slog.Attr{slog.String("method", c.method), slog.String("code", code.String())}
	if err != nil {
		message = "call failed"
		attributes = append(attributes, slog.String("error", status.Convert(err).Message()))
	}
	if id := RequestID(c.ctx); id != "" {
		attributes = append(attributes, slog.String("request_id", id))
	}
	c.logger.LogAttrs(c.ctx, c.level(code), message, append(attributes, slog.Duration("took", took.Round(time.Microsecond)))...)
}

// streamClient logs streams at their end, whether or not their caller receives it.
func (c callLogs) streamClient(ctx context.Context, description *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	began := time.Now()
	reporter, _ := c(ctx, interceptors.NewClientCallMeta(method, description, nil))
	options = append(options[:len(options):len(options)], grpc.OnFinish(func(err error) { reporter.PostCall(err, time.Since(began)) }))
	return streamer(ctx, description, conn, method, options...)
}

// callLogs is logCalls as an interceptor of a client's streams.
type callLogs interceptors.CommonReportableFunc

// serverLevel is debug for what went well, info for what callers did or should
// know, warn for what the service lacks, error for what is wrong with it.
func serverLevel(code codes.Code) slog.Level {
	switch code {
	case codes.OK:
		return slog.LevelDebug
	case codes.Unavailable, codes.Aborted:
		return slog.LevelWarn
	case codes.Unknown, codes.Internal, codes.DataLoss:
		return slog.LevelError
	}
	return slog.LevelInfo
}
