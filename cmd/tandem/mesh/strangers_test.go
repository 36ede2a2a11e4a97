package mesh_test

import (
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// Whoever reaches the ports of workers and stores cannot have them connect elsewhere, nor fill
// reservations that are another sender's, nor put blocks into a store unregistered.
func TestStrangersAtTheWorkers(t *testing.T) {
	// A port that nobody registered, like any other on the workers' network.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var dialled atomic.Int32
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			dialled.Add(1)
			_ = conn.Close()
		}
	}()
	o := upOptions(t)
	o.KVStores = 1
	runMesh(t, o, func(up mesh.Up) {
		operators := dial(t, up.Control)
		defer func() { _ = operators.Close() }()
		list, err := controlv1.NewControlClient(operators).ListWorkers(t.Context(), &controlv1.ListWorkersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		records, conns := map[controlv1.Role]*controlv1.WorkerRecord{}, map[controlv1.Role]*grpc.ClientConn{}
		for _, w := range list.GetWorkers() {
			record := w.GetRecord()
			records[record.GetRole()], conns[record.GetRole()] = record, dial(t, record.GetAddresses()[0])
			t.Cleanup(func() { _ = conns[record.GetRole()].Close() })
		}
		prefill, decode, store := records[controlv1.Role_ROLE_PREFILL], records[controlv1.Role_ROLE_DECODE], records[controlv1.Role_ROLE_KVTRANSFER]
		if prefill == nil || decode == nil || store == nil || len(decode.GetKvAddresses()) == 0 {
			t.Fatalf("the mesh has %v", list)
		}
		tokens := make([]uint32, 2*decode.GetCapacity().GetBlockTokens())
		for i := range tokens {
			tokens[i] = uint32(10 + i)
		}
		task := &workerv1.Task{
			Envelope: &inferencev1.Envelope{RequestId: "r"}, Model: prefill.GetModel(), ModelDigest: prefill.GetModelDigest(),
			TokenIds: tokens, MaxTokens: 4, Sampling: &inferencev1.Sampling{},
		}

		// A reservation that is for somebody else than the prefill worker.
		reserving, err := workerv1.NewDecodeClient(conns[controlv1.Role_ROLE_DECODE]).Run(t.Context(), &workerv1.DecodeRequest{
			Task: task, WorkerEpoch: decode.GetEpoch(), Sender: "prefill-elsewhere",
		})
		if err != nil {
			t.Fatal(err)
		}
		event, err := reserving.Recv()
		if err != nil {
			t.Fatal(err)
		}
		ticket := event.GetReserved().GetTicket()
		with := func(change func(*kvtransferv1.Ticket)) *kvtransferv1.Ticket {
			changed := proto.CloneOf(ticket)
			change(changed)
			return changed
		}
		elsewhere := []string{listener.Addr().String()}
		for name, ticket := range map[string]*kvtransferv1.Ticket{
			"a port that nobody registered": with(func(k *kvtransferv1.Ticket) { k.Addresses, k.Sender = elsewhere, "" }),
			"that port after the right ones": with(func(k *kvtransferv1.Ticket) {
				k.Addresses, k.Sender = append(k.GetAddresses(), elsewhere...), ""
			}),
			"a worker that nobody registered": {
				Receiver: "decode-9", Epoch: 9, Addresses: elsewhere, LayoutDigest: ticket.GetLayoutDigest(), Blocks: ticket.GetBlocks(), Lease: durationpb.New(time.Minute),
			},
			"another sender's ticket":                    ticket,
			"another sender's ticket, its name left out": with(func(k *kvtransferv1.Ticket) { k.Sender = "" }),
		} {
			stream, err := workerv1.NewPrefillClient(conns[controlv1.Role_ROLE_PREFILL]).Run(t.Context(), &workerv1.PrefillRequest{Task: task, WorkerEpoch: prefill.GetEpoch(), Ticket: ticket})
			if err == nil {
				_, err = stream.Recv()
			}
			if grpcstatus.Code(err) != codes.Unavailable {
				t.Errorf("%s: %v", name, err)
			}
		}

		stores := kvtransferv1.NewBlockStoreClient(conns[controlv1.Role_ROLE_KVTRANSFER])
		offer := &kvtransferv1.OfferRequest{
			StoreEpoch: store.GetEpoch(), Layout: prefill.GetLayout(), Sender: "prefill-9",
			Prefix: &kvtransferv1.Prefix{LayoutDigest: prefill.GetLayoutDigest(), TokenIds: tokens},
		}
		if _, err := stores.Offer(t.Context(), offer); grpcstatus.Code(err) != codes.PermissionDenied {
			t.Errorf("an offer of a worker that is not registered: %v", err)
		}
	})
	_ = listener.Close()
	<-accepting
	if n := dialled.Load(); n > 0 {
		t.Errorf("workers connected %d times to a port that nobody registered", n)
	}
}

// TestTLSTickets: with certificates, a ticket is of no use to a prefill worker that it does not
// name, whatever that calls itself, and a reservation that names no sender to nobody.
func TestTLSTickets(t *testing.T) {
	m := startSecured(t)
	view := awaitWorker(t, controlv1.NewControlClient(dialTLS(t, m.router.Control, m.operator)), "decode-1", (*controlv1.WorkerView).GetConnected)
	record := view.GetRecord()
	asRouter := workerv1.NewDecodeClient(dialTLS(t, m.decode.Address, m.asRouter.Peer(identity.Decode)))
	reserve := func(sender string) *kvtransferv1.Ticket {
		tokens := make([]uint32, 2*record.GetCapacity().GetBlockTokens())
		for i := range tokens {
			tokens[i] = 7
		}
		stream, err := asRouter.Run(t.Context(), &workerv1.DecodeRequest{
			WorkerEpoch: record.GetEpoch(), Sender: sender,
			Task: &workerv1.Task{
				Envelope: &inferencev1.Envelope{RequestId: "r"}, Model: record.GetModel(), ModelDigest: record.GetModelDigest(),
				TokenIds: tokens, MaxTokens: 4, Sampling: &inferencev1.Sampling{},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		event, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return event.GetReserved().GetTicket()
	}
	// open is what becomes of a ticket that a certificate's owner uses under a name.
	open := func(certificate, name string, ticket *kvtransferv1.Ticket) (answer *kvtransferv1.ReceiverMessage, err error) {
		conn := dialTLS(t, m.decodeKV, m.caller(m.of(identity.Prefill, certificate)))
		stream, err := kvtransferv1.NewKVTransferClient(conn).Stream(t.Context())
		if err != nil {
			return nil, err
		}
		for _, message := range []*kvtransferv1.SenderMessage{
			{Message: &kvtransferv1.SenderMessage_Hello{Hello: &kvtransferv1.SenderHello{
				Sender: name, Epoch: 5, Version: 2, LayoutDigest: ticket.GetLayoutDigest(), Session: rand.Uint64(),
			}}},
			{Message: &kvtransferv1.SenderMessage_Open{Open: &kvtransferv1.Open{
				TransferId: ticket.GetTransferId(), Epoch: ticket.GetEpoch(), Secret: ticket.GetSecret(), LayoutDigest: ticket.GetLayoutDigest(),
			}}},
		} {
			_ = stream.Send(message) // Recv says what is wrong
			if answer, err = stream.Recv(); err != nil {
				return nil, err
			}
		}
		return answer, nil
	}
	named, nameless := reserve("prefill-1"), reserve("")
	const wrongSender = kvtransferv1.RefuseReason_REFUSE_REASON_WRONG_SENDER
	if answer, err := open("prefill-9", "prefill-9", named); err != nil || answer.GetRefuse().GetReason() != wrongSender {
		t.Errorf("another worker in its own name: %v, %v", answer, err)
	}
	if answer, err := open("prefill-9", "prefill-1", named); grpcstatus.Code(err) != codes.PermissionDenied {
		t.Errorf("another worker in the right one's name: %v, %v", answer, err)
	}
	if answer, err := open("prefill-1", "prefill-1", nameless); err != nil || answer.GetRefuse().GetReason() != wrongSender {
		t.Errorf("a reservation that names nobody: %v, %v", answer, err)
	}
	if answer, err := open("prefill-1", "prefill-1", named); err != nil || answer.GetAccept() == nil {
		t.Errorf("whom the ticket names: %v, %v", answer, err)
	}
	if answer, err := open("prefill-1", "prefill-1", named); err != nil || answer.GetRefuse() == nil {
		t.Errorf("the same once more: %v, %v", answer, err)
	}
}

func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.Dial(address, rpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return conn
}
