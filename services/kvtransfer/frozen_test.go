package kvtransfer_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
	"github.com/tandem-serving/tandem/pkg/offload"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// stuck is a store that takes a put, reads all of it, and says nothing more.
type stuck struct {
	kvtransferv1.UnimplementedBlockStoreServer
	kvtransferv1.UnimplementedKVTransferServer
	peer offload.Store
	read chan struct{} // closed when Commit came
}

func (s *stuck) Offer(_ context.Context, request *kvtransferv1.OfferRequest) (*kvtransferv1.OfferResponse, error) {
	l := layout()
	return &kvtransferv1.OfferResponse{Ticket: &kvtransferv1.Ticket{
		TransferId: 5, Receiver: s.peer.ID, Epoch: s.peer.Epoch, Addresses: s.peer.Addresses, LayoutDigest: l.Digest(),
		Blocks: uint32(len(request.GetPrefix().GetTokenIds()) / l.BlockTokens), Lease: durationpb.New(lease),
	}}, nil
}

func (s *stuck) Stream(stream grpc.BidiStreamingServer[kvtransferv1.SenderMessage, kvtransferv1.ReceiverMessage]) error {
	l := layout()
	for {
		got, err := stream.Recv()
		if err != nil {
			return err
		}
		var answer *kvtransferv1.ReceiverMessage
		switch {
		case got.GetHello() != nil:
			answer = &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Hello{Hello: &kvtransferv1.ReceiverHello{
				Receiver: s.peer.ID, Epoch: s.peer.Epoch, Version: 2, CreditBytes: 1 << 20, MaxChunkBytes: 1 << 20, LayoutDigest: l.Digest()}}}
		case got.GetOpen() != nil:
			answer = &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Accept{
				Accept: &kvtransferv1.Accept{TransferId: got.GetOpen().GetTransferId()}}}
		case got.GetCommit() != nil:
			close(s.read)
			continue
		default:
			continue
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

// startStuck starts a store that is stuck, and a worker.
func startStuck(t *testing.T) (*stuck, *testWorker) {
	n := &network{kind: "memory"}
	listener, address := n.listen(t)
	s := &stuck{peer: offload.Store{ID: "store-1", Epoch: 77, Addresses: []string{address}}, read: make(chan struct{})}
	startProcess(t, listener, func(r grpc.ServiceRegistrar) {
		kvtransferv1.RegisterBlockStoreServer(r, s)
		kvtransferv1.RegisterKVTransferServer(r, s)
	}, func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	})
	return s, startWorker(t, n, "prefill-1", layout())
}

// A put whose blocks were all read returns with its context, although the store, which
// would have to say whether it has them, stands still.
func TestPutToAStoreThatStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := startStuck(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := putting(ctx, w, s.peer, prefix(5, 200))
		<-s.read
		synctest.Wait()
		cancelled := time.Now()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want Canceled", err)
		}
		if waited := time.Since(cancelled); waited > 0 {
			t.Errorf("it returned %v after its context ended", waited)
		}
	})
}

// A put that takes too long speaks against the store, unless this worker took most of the time.
func TestPutWhoseCheckTookMostOfTheTime(t *testing.T) {
	for _, c := range []struct {
		checks time.Duration
		state  offload.StoreState
	}{{4 * time.Second, offload.Failing}, {6 * time.Second, offload.Healthy}} {
		t.Run(c.checks.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w := startStuck(t)
				w.look = func() { time.Sleep(c.checks) }
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				err := <-putting(ctx, w, s.peer, prefix(5, 200))
				if o := storeclient.PutOutcome(err); o.State != c.state || o.Result != offload.PutLate {
					t.Errorf("%+v", o)
				}
			})
		})
	}
}
