package receiver_test

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// cut returns the stream closed because there are too many, or 0.
func cut(actions []receiver.Action) receiver.StreamID {
	for _, a := range actions {
		if c, is := a.(receiver.CloseStream); is && c.Cause == receiver.Full {
			return c.Stream
		}
	}
	return 0
}

// greet opens a session of one stream, and returns the stream closed because there are too many.
func greet(c *receiver.Core, at time.Time, id receiver.StreamID) receiver.StreamID {
	closed := cut(handle(c, at, receiver.StreamOpened{Stream: id}))
	if closed != id {
		handle(c, at, received(id, &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Hello{
			Hello: &kvtransferv1.SenderHello{Sender: "other", Epoch: uint64(id), Version: 2, LayoutDigest: layout}}}))
	}
	return closed
}

// Idle sessions do not shut others out: the one idle for longest is closed, but none with a
// transfer.
func TestIdleSessionsGiveWay(t *testing.T) {
	c := opened() // stream 1, with a transfer; the limit is 2
	for _, step := range []struct {
		opens, closes receiver.StreamID
	}{{2, 0}, {3, 2}, {4, 3}, {5, 5}} { // at 5: two streams are still closing, so no more may come
		if got := greet(c, start, step.opens); got != step.closes {
			t.Fatalf("when stream %d comes, stream %d is closed, not %d", step.opens, got, step.closes)
		}
	}
	for _, id := range []receiver.StreamID{2, 3, 5} {
		handle(c, start, receiver.StreamClosed{Stream: id})
	}
	handle(c, start, received(1, chunk(0, 0, sliceBytes, 1, 1)))
	if got := greet(c, start.Add(time.Millisecond), 6); got != 4 {
		t.Errorf("stream %d gives way, not the idle 4", got)
	}
}

// A session that has only said hello is not the one idle for longest.
func TestNewSessionsStay(t *testing.T) {
	c := opened() // stream 1; the limit is 2
	handle(c, start, received(1, abort()))
	greet(c, start.Add(time.Millisecond), 2)
	if got := greet(c, start.Add(2*time.Millisecond), 3); got != 1 {
		t.Errorf("stream %d gives way, not the idle 1", got)
	}
}
