package receiver_test

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// ends reports whether actions fail a transfer or close a stream.
func ends(actions []receiver.Action) bool {
	for _, a := range actions {
		switch a.(type) {
		case receiver.Failed, receiver.CloseStream:
			return true
		}
	}
	return false
}

// A slow copy does not expire the lease, since the sender's messages may wait behind it. A
// new lease begins when it ends.
func TestSlowCopies(t *testing.T) {
	for _, test := range []struct {
		name  string
		takes time.Duration
	}{{"nearly a lease", lease - time.Millisecond}, {"several leases", 7 * lease / 2}} {
		t.Run(test.name, func(t *testing.T) {
			c := opened()
			handle(c, start, received(1, chunk(0, 0, sliceBytes, 1, 1)))
			tick := func(until time.Time) {
				for {
					at, ok := c.Next()
					if !ok || !at.Before(until) {
						return
					}
					if ends(handle(c, at, receiver.Tick{})) {
						t.Fatalf("it ends after %v, the copy lasted %v", at.Sub(start), test.takes)
					}
				}
			}
			landed := start.Add(test.takes)
			tick(landed)
			handle(c, landed, receiver.Written{Stream: 1, ID: transferID, Bytes: sliceBytes})
			tick(landed.Add(lease))
			if !ends(handle(c, landed.Add(lease), receiver.Tick{})) {
				t.Error("a silent sender is waited for longer than a lease after the copy")
			}
		})
	}
}

// The session's other transfers are protected by the copy too. A forgotten transfer still
// expires as long as the sender is heard.
func TestSlowCopiesOfOthers(t *testing.T) {
	for _, heard := range []bool{false, true} {
		c := opened()
		handle(c, start, receiver.Reserve{ID: 2, Secret: secret, Blocks: []kvcache.BlockID{20}})
		handle(c, start, received(1, &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Open{
			Open: &kvtransferv1.Open{TransferId: 2, Epoch: epoch, Secret: secret, LayoutDigest: layout}}}))
		handle(c, start, received(1, chunk(0, 0, sliceBytes, 1, 1)))
		if heard {
			handle(c, start.Add(lease/2), received(1, chunk(1, 0, sliceBytes, 2, 1)))
		}
		failed := false
		for _, a := range handle(c, start.Add(lease), receiver.Tick{}) {
			switch a := a.(type) {
			case receiver.Failed:
				failed = a.ID == 2
			case receiver.CloseStream:
				t.Errorf("heard %v: the session is closed: %s", heard, a.Detail)
			}
		}
		if failed != heard {
			t.Errorf("heard %v: the other transfer failed: %v", heard, failed)
		}
	}
}

// A Renew renews each transfer at most once, however often it names it.
func TestRenewIsBounded(t *testing.T) {
	renewed := 0
	c := receiver.New(receiver.Config{
		WorkerID: "decode", Epoch: epoch, LayoutDigest: layout, Layers: 2, SliceBytes: sliceBytes,
		Lease: lease, CreditBytes: 64, MaxChunkBytes: 16, MaxReservations: 2, MaxStreams: 2,
		Observe: func(x receiver.Transition) {
			if x.String() == "open, Renew → open" {
				renewed++
			}
		},
	})
	handle(c, start, receiver.Reserve{ID: transferID, Secret: secret, Blocks: blocks(), Held: 1})
	handle(c, start, receiver.StreamOpened{Stream: 1})
	for _, m := range []*kvtransferv1.SenderMessage{hello(2), open()} {
		handle(c, start, received(1, m))
	}
	ids := []uint64{99}
	for range 1000 {
		ids = append(ids, transferID)
	}
	handle(c, start.Add(lease/2), received(1, &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Renew{
		Renew: &kvtransferv1.Renew{TransferIds: ids}}}))
	if renewed != 1 {
		t.Errorf("renewed %d times", renewed)
	}
	if at, _ := c.Next(); !at.Equal(start.Add(lease/2 + lease)) {
		t.Errorf("the lease ends at %v", at.Sub(start))
	}
}
