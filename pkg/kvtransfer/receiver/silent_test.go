package receiver_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// A sender silent for a lease gets no second one; a sender that only forgot a transfer is
// asked to acknowledge its end.
func TestSilentSessionsAreNotAskedToAcknowledge(t *testing.T) {
	for _, test := range []struct {
		name   string
		speaks bool
	}{{"a silent sender", false}, {"a sender that forgot a transfer", true}} {
		t.Run(test.name, func(t *testing.T) {
			c := opened()
			if test.speaks {
				c.Handle(start.Add(lease/2), receiver.Received{Stream: 1, Message: &kvtransferv1.SenderMessage{
					Message: &kvtransferv1.SenderMessage_Renew{Renew: &kvtransferv1.Renew{TransferIds: []uint64{transferID + 1}}}}})
			}
			failed, closed := false, false
			for _, a := range c.Handle(start.Add(lease), receiver.Tick{}) {
				switch a := a.(type) {
				case receiver.Failed:
					failed = a.Reason == kvtransferv1.FailReason_FAIL_REASON_EXPIRED
				case receiver.CloseStream:
					closed = a.Cause == receiver.Silence
				case receiver.Drained:
					t.Error("drained although the stream has not ended")
				}
			}
			if !failed || closed == test.speaks {
				t.Errorf("failed: %v, stream closed: %v", failed, closed)
			}
		})
	}
}
