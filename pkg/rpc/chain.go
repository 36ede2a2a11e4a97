package rpc

import (
	"cmp"
	"context"
	"log/slog"
	"runtime/debug"
	"slices"
	"strconv"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/tandem-serving/tandem/pkg/api"
)

// pushbackKey is the trailer that gRPC clients with a retry policy obey:
// milliseconds to wait before another try.
const pushbackKey = "grpc-retry-pushback-ms"

// chains are the interceptors of a server's unary calls, outermost first, in the order of the
// package comment, and the one of its streams.
func (s *Server) chains(cfg ServerConfig) ([]grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor) {
	metrics := newMetrics(cfg.Registerer, "server")
	logger := cfg.Logger.With(slog.String("server", cfg.Name))
	lines := logCalls(logger, serverLevel)
	logs := func(fullMethod string) bool {
		return !isInfrastructure(fullMethod) && !slices.Contains(cfg.Unlogged, fullMethod)
	}
	panics := func(ctx context.Context, p any) error {
		logger.ErrorContext(ctx, "handler panicked", slog.String("request_id", RequestID(ctx)),
			slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
		return Error(codes.Internal, api.ReasonPanic, "the server failed on this request: see its log", 0)
	}
	stream := &streamChain{server: s, name: cfg.Name, metrics: metrics, lines: lines, logs: logs, panics: panics, audit: cfg.Audit}
	unary := []grpc.UnaryServerInterceptor{
		contextUnaryServer,
		metrics.unaryServer(cfg.Name),
		selector.UnaryServerInterceptor(interceptors.UnaryServerInterceptor(lines), selector.MatchFunc(func(_ context.Context, call interceptors.CallMeta) bool {
			return logs(call.FullMethod())
		})),
		recovery.UnaryServerInterceptor(recovery.WithRecoveryHandlerContext(panics)),
		pushbackUnaryServer,
		endedUnaryServer,
	}
	if cfg.Credentials != nil {
		stream.checks = append(stream.checks, checkRole(cfg.Authenticate != nil))
	}
	if cfg.Authenticate != nil {
		stream.checks = append(stream.checks, cfg.Authenticate)
	}
	if len(stream.checks) > 0 || cfg.Audit != nil {
		unary = append(unary, checkUnaryServer(stream.checks, cfg.Audit))
	}
	return append(unary, timeoutUnaryServer), stream.intercept
}

// check decides whether a call goes on, and with which context. With an error that is what the audit
// and the log are told of, or nil.
type check func(ctx context.Context, fullMethod string) (context.Context, error)

// pass has a call pass the checks. The context is never nil.
func pass(ctx context.Context, checks []check, fullMethod string) (context.Context, error) {
	for _, check := range checks {
		next, err := check(ctx, fullMethod)
		if next != nil {
			ctx = next
		}
		if err != nil {
			return ctx, err
		}
	}
	return ctx, nil
}

// audit is ServerConfig.Audit.
type audit func(ctx context.Context, fullMethod string, request any, err error)

func checkUnaryServer(checks []check, audit audit) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
		if isHealth(info.FullMethod) {
			return handler(ctx, request)
		}
		if audit != nil {
			of, wrapped := request.(*unread) // as wrapUnary has it
			defer func() {
				if wrapped {
					request = of.message
				}
				audit(ctx, info.FullMethod, request, err)
			}()
		}
		if ctx, err = pass(ctx, checks, info.FullMethod); err != nil {
			return nil, err
		}
		return handler(ctx, request)
	}
}

func timeoutUnaryServer(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if _, ok := ctx.Deadline(); ok {
		return handler(ctx, request)
	}
	ctx, cancel := context.WithTimeout(ctx, unaryTimeout)
	defer cancel()
	return handler(ctx, request)
}

func pushbackUnaryServer(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	reply, err := handler(ctx, request)
	if trailer := pushback(err); trailer != nil {
		// It fails only when the stream has ended, and then nobody reads it.
		_ = grpc.SetTrailer(ctx, trailer)
	}
	return reply, err
}

// endedUnaryServer gives a call that Limits ended the status of that, whatever its handler says
// of the end of its context.
func endedUnaryServer(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	reply, err := handler(ctx, request)
	if err != nil {
		err = cmp.Or(callOf(ctx).why(), err)
	}
	return reply, err
}

func pushback(err error) metadata.MD {
	wait, ok := RetryAfter(err)
	if !ok {
		return nil
	}
	return metadata.Pairs(pushbackKey, strconv.FormatInt(max(1, wait.Milliseconds()), 10))
}
