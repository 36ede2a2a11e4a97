package receiver_test

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// cut is the stream that actions close because there are too many; 0: none.
func cut(actions []receiver.Action) receiver.StreamID {
	for _, a := range actions {
		if c, is := a.(receiver.CloseStream); is && c.Cause == receiver.Full {
			return c.Stream
		}
	}
	return 0
}

// Senders that greet and then say nothing do not shut others out: the one that is idle
// for longest gives way. One with a transfer does not.
func TestIdleSessionsGiveWay(t *testing.T) {
	c := opened() // stream 1, with a transfer, of 2 at most
	greet := func(at time.Time, id receiver.StreamID) receiver.StreamID {
		t.Helper()
		closed := cut(handle(c, at, receiver.StreamOpened{Stream: id}))
		if closed != id {
			handle(c, at, received(id, &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Hello{
				Hello: &kvtransferv1.SenderHello{Sender: "other", Epoch: uint64(id), Version: 2, LayoutDigest: layout}}}))
		}
		return closed
	}
	for _, step := range []struct {
		opens, closes receiver.StreamID
	}{{2, 0}, {3, 2}, {4, 3}, {5, 5}} { // at 5, two that close have not ended: no more than that
		if got := greet(start, step.opens); got != step.closes {
			t.Fatalf("when stream %d comes, stream %d is closed, not %d", step.opens, got, step.closes)
		}
	}
	for _, id := range []receiver.StreamID{2, 3, 5} {
		handle(c, start, receiver.StreamClosed{Stream: id})
	}
	handle(c, start, received(1, chunk(0, 0, sliceBytes, 1, 1)))
	if got := greet(start.Add(time.Millisecond), 6); got != 4 {
		t.Errorf("stream %d gives way, not the idle 4", got)
	}
}
