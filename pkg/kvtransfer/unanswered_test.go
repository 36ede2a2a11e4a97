package kvtransfer_test

import (
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// cutter ends the stream over which the next Open comes, or the next Accept goes. That is lost.
type cutter struct{ open, accept bool }

func (c *cutter) serve(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	s := cutStream{stream, c, make(chan struct{}, 1)}
	ended := make(chan error, 1)
	go func() { ended <- handle(srv, s) }()
	select {
	case err := <-ended:
		return err
	case <-s.cut:
		return status.Error(codes.ResourceExhausted, "its place is needed")
	}
}

type cutStream struct {
	grpc.ServerStream
	by  *cutter
	cut chan struct{}
}

func (s cutStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if in, is := m.(*wire.Incoming); err == nil && is && in.Message.GetOpen() != nil && s.by.open {
		s.by.open = false
		s.cut <- struct{}{}
		return s.ServerStream.RecvMsg(m)
	}
	return err
}

func (s cutStream) SendMsg(m any) error {
	if out, is := m.(*kvtransferv1.ReceiverMessage); is && out.GetAccept() != nil && s.by.accept {
		s.by.accept = false
		s.cut <- struct{}{}
		return nil
	}
	return s.ServerStream.SendMsg(m)
}

// A session that was there before may end while Open waits for the answer. It is tried once more
// over a new one, and a receiver that had accepted the ticket refuses it.
func TestSessionEndsBeforeTheAnswer(t *testing.T) {
	overStreams(t, func(t *testing.T, streams option) {
		cut := &cutter{}
		g := newRig(t, streams, func(c *rigConfig) { c.serving = cut.serve })
		for range 2 {
			ticket, o := g.reserve(kvcache.BlockRange(0, 4), 0, 4)
			tr := g.open(ticket)
			sendAll(tr, kvcache.BlockRange(0, 4), 0, 4)
			tr.Commit(nil)
			wait(t, "done", tr.Done())
			wait(t, "committed", o.over)
			if tr.Err() != nil || !o.committed || cut.open {
				t.Errorf("%v at the sender, %v at the receiver; still to be cut: %t", tr.Err(), o.err, cut.open)
			}
			g.checkPages(kvcache.BlockRange(0, 4), kvcache.BlockRange(0, 4))
			synctest.Wait()
			cut.open = true
		}
		cut.open, cut.accept = false, true
		ticket, o := g.reserve(kvcache.BlockRange(8, 4), 0, 4)
		if _, err := g.sender.Open(t.Context(), ticket, "r"); refuseReason(err) == 0 {
			t.Errorf("a ticket that was accepted: %v", err)
		}
		wait(t, "drained", o.over)
		if !isBroken(o.err) {
			t.Errorf("ended with %v at the receiver", o.err)
		}
		g.checkEmpty(kvcache.BlockRange(8, 4))
	})
}
