package kvtransfer_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
)

// FuzzTickets opens arbitrary tickets without a listening receiver. Every Open fails, and
// only valid tickets are dialled.
func FuzzTickets(f *testing.F) {
	layout := kvtransfertest.Layout(3, 8)
	pages := kvtransfertest.NewDevice()(layout, 4)
	good := kvtransferv1.Ticket{
		TransferId: 1, Epoch: 2, Secret: 3, Addresses: []string{"127.0.0.1:1", "unix:///nowhere"}, LayoutDigest: layout.Digest(),
		Blocks: 4, HeldBlocks: 1, Lease: durationpb.New(10 * time.Second), Receiver: "decode-0", Encoding: kvtransferv1.Encoding_ENCODING_INT8,
	}
	for _, change := range []func(*kvtransferv1.Ticket){
		func(*kvtransferv1.Ticket) {},
		func(t *kvtransferv1.Ticket) { t.Blocks = 1<<32 - 1 },
		func(t *kvtransferv1.Ticket) { t.HeldBlocks = t.GetBlocks() + 1 },
		func(t *kvtransferv1.Ticket) { t.Lease = &durationpb.Duration{Seconds: 1 << 62, Nanos: -1} },
		func(t *kvtransferv1.Ticket) { t.Lease = nil },
		func(t *kvtransferv1.Ticket) { t.Addresses = []string{""} },
		func(t *kvtransferv1.Ticket) { t.Encoding = -1 },
		func(t *kvtransferv1.Ticket) { t.Encoding = encodingLent },
		func(t *kvtransferv1.Ticket) { t.Memory = pages.Memory() },
	} {
		ticket := proto.CloneOf(&good)
		change(ticket)
		encoded, err := proto.Marshal(ticket)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encoded)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		ticket := new(kvtransferv1.Ticket)
		if proto.Unmarshal(data, ticket) != nil {
			return
		}
		var mu sync.Mutex // streams of a session are dialled concurrently
		var dialled []string
		sender, err := kvtransfer.NewSender(kvtransfer.SenderConfig{
			WorkerID: "prefill-0", Epoch: 9, Layout: layout, Streams: 2,
			Dial: func(address string) (*grpc.ClientConn, error) {
				mu.Lock()
				defer mu.Unlock()
				dialled = append(dialled, address)
				return nil, errors.New("nobody is there")
			},
		}, pages)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = sender.Open(ctx, ticket, "r")
		if err == nil || ctx.Err() != nil {
			t.Errorf("%v: %v", ticket, err)
		}
		if err := sender.Close(ctx); err != nil {
			t.Error(err)
		}
		if len(dialled) == 0 {
			return
		}
		if ticket.GetLayoutDigest() != layout.Digest() || ticket.GetHeldBlocks() > ticket.GetBlocks() || ticket.GetLease().AsDuration() <= 0 ||
			slices.ContainsFunc(dialled, func(address string) bool { return !slices.Contains(ticket.GetAddresses(), address) }) {
			t.Errorf("%v was dialled for, at %q", ticket, dialled)
		}
	})
}
