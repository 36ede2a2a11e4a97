package receiver_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// stripe returns the hello of one stream of session 5, which has three.
func stripe(number uint32, change ...func(*kvtransferv1.SenderHello)) *kvtransferv1.SenderMessage {
	hello := &kvtransferv1.SenderHello{
		Sender: "prefill", Epoch: 3, Version: 2, LayoutDigest: layout, Session: 5, Stripe: number, Stripes: 3,
	}
	for _, c := range change {
		c(hello)
	}
	return &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Hello{Hello: hello}}
}

func wideCore() *receiver.Core {
	return receiver.New(receiver.Config{
		WorkerID: "decode", Epoch: epoch, LayoutDigest: layout, Layers: 2, SliceBytes: sliceBytes,
		Lease: lease, CreditBytes: 64, MaxChunkBytes: 16, MaxReservations: 2, MaxStreams: 6,
	})
}

func join(c *receiver.Core, stream receiver.StreamID, hello *kvtransferv1.SenderMessage) []receiver.Action {
	handle(c, start, receiver.StreamOpened{Stream: stream})
	return handle(c, start, received(stream, hello))
}

// closed returns the streams that actions close, and the last cause.
func closed(actions []receiver.Action) (streams []receiver.StreamID, cause receiver.Cause) {
	for _, a := range actions {
		if shut, ok := a.(receiver.CloseStream); ok {
			streams, cause = append(streams, shut.Stream), shut.Cause
		}
	}
	return streams, cause
}

// A stream that does not fit its session is closed, and the session continues.
func TestStripesThatDoNotFit(t *testing.T) {
	for _, test := range []struct {
		name  string
		hello *kvtransferv1.SenderMessage
	}{
		{"another count", stripe(2, func(h *kvtransferv1.SenderHello) { h.Stripes = 4 })},
		{"a count of none", stripe(0, func(h *kvtransferv1.SenderHello) { h.Stripes = 0 })},
		{"too many", stripe(2, func(h *kvtransferv1.SenderHello) { h.Session, h.Stripes = 6, 9 })},
		{"out of range", stripe(3)},
		{"taken", stripe(1)},
		{"another sender", stripe(2, func(h *kvtransferv1.SenderHello) { h.Sender = "another" })},
		{"another start of the sender", stripe(2, func(h *kvtransferv1.SenderHello) { h.Epoch++ })},
		{"another layout", stripe(2, func(h *kvtransferv1.SenderHello) { h.LayoutDigest++ })},
		{"several without a session", stripe(2, func(h *kvtransferv1.SenderHello) { h.Session = 0 })},
		{"an old version", stripe(2, func(h *kvtransferv1.SenderHello) { h.Version = 1 })},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := wideCore()
			join(c, 1, stripe(0))
			join(c, 2, stripe(1))
			streams, cause := closed(join(c, 3, test.hello))
			if len(streams) != 1 || streams[0] != 3 || cause != receiver.Breach && cause != receiver.Version {
				t.Fatalf("streams %v are closed for %v", streams, cause)
			}
			handle(c, start, receiver.StreamClosed{Stream: 3})
			if streams, _ := closed(join(c, 4, stripe(2))); len(streams) != 0 {
				t.Errorf("the right stream closes %v", streams)
			}
			if streams, _ := closed(join(c, 5, stripe(2))); len(streams) != 1 || streams[0] != 5 {
				t.Errorf("one stream too many closes %v", streams)
			}
		})
	}
}

// A session that is incomplete after the lease ends with all its streams.
func TestSessionsThatStayIncomplete(t *testing.T) {
	c := wideCore()
	join(c, 1, stripe(0))
	join(c, 2, stripe(2))
	streams, cause := closed(handle(c, start.Add(lease), receiver.Tick{}))
	if len(streams) != 2 || cause != receiver.Silence {
		t.Fatalf("streams %v are closed for %v", streams, cause)
	}
	if streams, cause := closed(join(c, 3, stripe(1))); len(streams) != 1 || cause != receiver.SessionOver {
		t.Errorf("the late stream: %v are closed for %v", streams, cause)
	}
	for i := range receiver.StreamID(3) {
		handle(c, start, receiver.StreamClosed{Stream: i + 1})
	}
	if !c.Idle() {
		t.Errorf("left: %+v", c.Stats())
	}
}

// Messages are accepted only on their stripe, and only once the session is complete.
func TestMessagesHaveTheirStripe(t *testing.T) {
	renew := &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Renew{Renew: &kvtransferv1.Renew{}}}
	for _, test := range []struct {
		name     string
		complete bool
		stream   receiver.StreamID
		message  *kvtransferv1.SenderMessage
		want     receiver.Cause
	}{
		{"open on the second", true, 2, open(), receiver.Breach},
		{"renew on the second", true, 2, renew, receiver.Breach},
		{"open before the third has greeted", false, 1, open(), receiver.SessionOver},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := wideCore()
			join(c, 1, stripe(0))
			join(c, 2, stripe(1))
			if test.complete {
				join(c, 3, stripe(2))
			}
			if streams, cause := closed(handle(c, start, received(test.stream, test.message))); len(streams) < 2 || cause != test.want {
				t.Errorf("streams %v are closed for %v", streams, cause)
			}
		})
	}
}

// striped returns a core with one reservation, opened by a session of three streams.
func striped() *receiver.Core {
	c := wideCore()
	handle(c, start, receiver.Reserve{ID: transferID, Secret: secret, Blocks: blocks(), Held: 1})
	for i := range receiver.StreamID(3) {
		join(c, i+1, stripe(uint32(i)))
	}
	handle(c, start, received(1, open()))
	return c
}

// Blocks are freed only after the end on every stripe, by Abort or by close.
func TestDrainedWaitsForEveryStripe(t *testing.T) {
	for _, test := range []struct {
		name string
		ends func(receiver.StreamID) receiver.Event
	}{
		{"aborts", func(s receiver.StreamID) receiver.Event { return received(s, abort()) }},
		{"connections", func(s receiver.StreamID) receiver.Event { return receiver.StreamClosed{Stream: s} }},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := striped()
			for _, stream := range []receiver.StreamID{2, 1, 3} {
				drained := false
				for _, a := range handle(c, start, test.ends(stream)) {
					if _, ok := a.(receiver.Drained); ok {
						drained = true
					}
				}
				if drained != (stream == 3) {
					t.Fatalf("stream %d: drained is %v", stream, drained)
				}
			}
		})
	}
}

// Each stripe's Commit counts its own chunks. Only the first may carry tokens.
func TestCommitOverEveryStripe(t *testing.T) {
	c := striped()
	feedOver := func(stream receiver.StreamID, m *kvtransferv1.SenderMessage) (committed, failed bool) {
		for _, a := range handle(c, start, received(stream, m)) {
			switch a := a.(type) {
			case *receiver.Write:
				handle(c, start, receiver.Written{Stream: a.Stream, ID: a.ID, Bytes: a.Bytes})
			case receiver.Committed:
				committed = true
			case receiver.Failed:
				failed = true
			}
		}
		return committed, failed
	}
	for i, step := range []struct {
		stream  receiver.StreamID
		message *kvtransferv1.SenderMessage
	}{
		{3, chunk(0, 0, 12, 1, 1, 3, 2)}, {2, chunk(0, 1, 16, 1, 4)}, {2, commit(1, epoch)},
		{3, chunk(1, 0, 8, 2, 1, 5, 1)}, {1, chunk(0, 1, 4, 5, 1)}, {1, commit(1, epoch, 3)}, {3, commit(2, epoch)},
	} {
		committed, failed := feedOver(step.stream, step.message)
		if failed || committed != (i == 6) {
			t.Fatalf("step %d: committed %v, failed %v", i, committed, failed)
		}
	}
	c = striped()
	if _, failed := feedOver(2, commit(0, epoch, 3)); !failed {
		t.Error("tokens on the second stripe: it goes on")
	}
	c = striped()
	feedOver(2, commit(0, epoch))
	if _, failed := feedOver(2, chunk(0, 0, 4, 1, 1)); !failed {
		t.Error("a chunk after its stripe's commit: it goes on")
	}
}
