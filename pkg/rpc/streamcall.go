package rpc

import (
	"cmp"
	"context"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"google.golang.org/grpc"
)

// streamChain is the one interceptor of a server's streams. It does all that the package comment
// lists: an interceptor each would take a kilobyte and a half of the stack of every stream for
// as long as that lasts, and with it the next larger stack.
type streamChain struct {
	server  *Server
	name    string
	metrics *metrics
	lines   interceptors.CommonReportableFunc
	logs    func(fullMethod string) bool
	panics  func(ctx context.Context, p any) error
	checks  []check
	audit   audit // nil: nobody is told
}

func (c *streamChain) intercept(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	call := c.begin(stream, info)
	defer call.end(&err)
	if err := call.check(); err != nil {
		return err
	}
	if isInfrastructure(info.FullMethod) {
		return c.server.endWithServer(server, call, handler)
	}
	return handler(server, call)
}

func (c *streamChain) begin(stream grpc.ServerStream, info *grpc.StreamServerInfo) *streamCall {
	return &streamCall{
		ServerStream: stream, ctx: incomingTrace(incomingRequestID(stream.Context())),
		chain: c, info: info, began: time.Now(), counted: c.metrics.begin(c.name, info.FullMethod), metered: callOf(stream.Context()),
	}
}

// streamCall is one call of a stream, as its handler sees it.
type streamCall struct {
	grpc.ServerStream
	ctx     context.Context
	chain   *streamChain
	info    *grpc.StreamServerInfo
	began   time.Time
	counted func(error)
	metered *meteredCall // nil: no limits

	receiving decoding // the message that is received: there is one at a time
	sending   sending  // the message that is sent: as well
	first     any      // the first message received, for the audit
}

// Context is the call's, with what the chain has put there.
func (s *streamCall) Context() context.Context { return s.ctx }

// RecvMsg receives a message.
func (s *streamCall) RecvMsg(message any) error {
	s.receiving = decoding{message: message}
	defer func() { s.receiving = decoding{} }()
	err := s.chain.server.decoder.receive(s.metered, s.info.FullMethod, &s.receiving, s.ServerStream.RecvMsg)
	if err == nil && s.chain.audit != nil && s.first == nil {
		s.first = message // not before: it may be decoded still when its call has ended
	}
	return err
}

// SendMsg sends a message.
func (s *streamCall) SendMsg(message any) error {
	if s.metered == nil {
		return s.ServerStream.SendMsg(message)
	}
	s.sending = sending{message, s.metered}
	err := s.ServerStream.SendMsg(&s.sending)
	s.sending = sending{}
	return err
}

// check says whether the call goes on, and with which context.
func (s *streamCall) check() (err error) {
	if !isHealth(s.info.FullMethod) {
		s.ctx, err = pass(s.ctx, s.chain.checks, s.info.FullMethod)
	}
	return err
}

// end ends the call with the error of its handler, or with its panic. It is deferred.
func (s *streamCall) end(err *error) {
	if p := recover(); p != nil {
		*err = s.chain.panics(s.ctx, p)
	} else if *err != nil {
		*err = cmp.Or(s.metered.why(), *err)
		if trailer := pushback(*err); trailer != nil {
			s.SetTrailer(trailer)
		}
	}
	if s.chain.audit != nil && !isHealth(s.info.FullMethod) {
		s.chain.audit(s.ctx, s.info.FullMethod, s.first, *err)
	}
	if s.chain.logs(s.info.FullMethod) {
		reporter, _ := s.chain.lines(s.ctx, interceptors.NewServerCallMeta(s.info.FullMethod, s.info, nil))
		reporter.PostCall(*err, time.Since(s.began))
	}
	s.counted(*err)
}
