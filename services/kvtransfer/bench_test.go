package kvtransfer_test

import (
	"context"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tandem-serving/tandem/services/kvtransfer"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/wire"
	"github.com/tandem-serving/tandem/services/kvtransfer/kvtransfertest"
)

// BenchmarkTransfer moves 64 MiB in slices of 64 KiB over loopback.
func BenchmarkTransfer(b *testing.B) {
	const blocks, slice = 64, 64 << 10
	layout := kvtransfertest.Layout(16, slice)
	from, to := kvtransfertest.NewPages(layout, blocks), kvtransfertest.NewPages(layout, blocks)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	receiver, err := kvtransfer.NewReceiver(kvtransfer.ReceiverConfig{
		WorkerID: "decode-0", Epoch: 7, Layout: layout, Addresses: []string{listener.Addr().String()}}, to)
	if err != nil {
		b.Fatal(err)
	}
	sender, err := kvtransfer.NewSender(kvtransfer.SenderConfig{WorkerID: "prefill-0", Epoch: 9, Layout: layout,
		Dial: func(address string) (*grpc.ClientConn, error) {
			return grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		}}, from)
	if err != nil {
		b.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(wire.Codec()), grpc.MaxRecvMsgSize(receiver.MaxMessageBytes()))
	receiver.Register(server)
	ctx, cancel := context.WithCancel(b.Context())
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer server.Stop()
	defer cancel()
	tasks.Go(func() { _ = server.Serve(listener) })
	tasks.Go(func() { _ = receiver.Run(ctx) })
	defer func() { _ = sender.Close(ctx) }()

	source := blockRange(0, blocks)
	b.SetBytes(blocks * int64(layout.PageBytes()))
	for b.Loop() {
		over := make(chan struct{})
		ticket, err := receiver.Reserve(kvtransfer.Reservation{
			Blocks: source, PromptBlocks: blocks,
			Committed: func(kvtransfer.Arrival) { close(over) },
			Failed:    func(err error) { b.Error(err) },
			Drained:   func() { close(over) },
		})
		if err != nil {
			b.Fatal(err)
		}
		tr, err := sender.Open(ctx, ticket, "r")
		if err != nil {
			b.Fatal(err)
		}
		for layer := range layout.Layers {
			tr.Send(layer, 0, source)
		}
		tr.Commit(nil)
		<-over
	}
}
