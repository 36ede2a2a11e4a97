package kvtransfer_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	"github.com/tandem-serving/tandem/pkg/rpc"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// newSocketRig is a rig over a socket of the operating system. Its tickets name a dead
// address first. Over "shm" the receiver's pages are of its own kind.
func newSocketRig(t *testing.T, network string, streams int, pages func(kvcache.Layout, int) *kvtransfertest.Pages) *rig {
	t.Helper()
	layout := kvtransfertest.Layout(layers, sliceBytes)
	g := &rig{t: t, from: pages(layout, poolBlocks), to: pages(layout, poolBlocks), streams: streams}
	sending := kvtransfer.SenderConfig{
		WorkerID: "prefill-0", Epoch: 9, Layout: layout, Streams: streams,
		Dial: func(address string) (*grpc.ClientConn, error) {
			return rpc.Dial(address, kvtransfer.Dialing(rpc.ClientConfig{}))
		},
	}
	receiving := kvtransfer.ReceiverConfig{WorkerID: "decode-0", Epoch: 7, Layout: layout, CreditBytes: 2000, MaxChunkBytes: 450}
	var sharing *net.UnixListener
	if network == "shm" {
		g.to, sharing = sharePages(t, layout, &receiving)
		sending.MapPages, sending.OnlyMapped = kvtransfer.MapPages, true
		network = "unix"
	}
	for b := range poolBlocks {
		g.from.Fill(kvcache.BlockID(b), 1)
	}
	folder := t.TempDir()
	address := map[string]string{"tcp": "127.0.0.1:0", "unix": "unix://" + filepath.Join(folder, "kv.sock")}[network]
	listener, err := kvtransfer.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	if network == "tcp" {
		address = listener.Addr().String()
	}
	receiving.Addresses = []string{"unix://" + filepath.Join(folder, "nobody.sock"), address}
	if g.receiver, err = kvtransfer.NewReceiver(receiving, g.to); err != nil {
		t.Fatal(err)
	}
	if g.sender, err = kvtransfer.NewSender(sending, g.from); err != nil {
		t.Fatal(err)
	}
	server := rpc.NewServer(kvtransfer.Serving(rpc.ServerConfig{MaxReceiveBytes: g.receiver.MaxMessageBytes()}))
	g.receiver.Register(server)
	g.stop = sync.OnceFunc(func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		_ = server.Stop(now) // it reports cut calls
	})
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() { _ = server.Serve(listener) })
	tasks.Go(func() { _ = g.receiver.Run(ctx) })
	if sharing != nil {
		tasks.Go(func() {
			if err := g.receiver.ServePages(context.Background(), sharing); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		if err := g.sender.Close(context.Background()); err != nil {
			t.Error(err)
		}
		cancel()
		g.stop()
		if sharing != nil {
			_ = sharing.Close()
		}
		tasks.Wait()
	})
	return g
}

// sharePages gives a receiver pages that processes of this host can map, and the socket for them.
func sharePages(t *testing.T, layout kvcache.Layout, cfg *kvtransfer.ReceiverConfig) (*kvtransfertest.Pages, *net.UnixListener) {
	t.Helper()
	pages, free, err := kvtransfertest.NewSharedPages(layout, poolBlocks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := free(); err != nil {
			t.Error(err)
		}
	})
	cfg.PagesSocket = filepath.Join(t.TempDir(), "pages")
	listener, err := kvtransfer.ListenPages(cfg.PagesSocket)
	if err != nil {
		t.Fatal(err)
	}
	return pages, listener
}

// Transfers also work over sockets of the operating system.
func TestSockets(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, *rig)
	}{
		{"transfers side by side", transferSideBySide},
		{"the sender aborts", func(t *testing.T, g *rig) {
			endOverSocket(t, g, func(tr *kvtransfer.Transfer, _ *kvtransferv1.Ticket) {
				tr.Abort(kvtransferv1.AbortReason_ABORT_REASON_FAILED)
			},
				func(err error) bool { return abortReason(err) == kvtransferv1.AbortReason_ABORT_REASON_FAILED })
		}},
		{"the receiver cancels", func(t *testing.T, g *rig) {
			endOverSocket(t, g, func(_ *kvtransfer.Transfer, ticket *kvtransferv1.Ticket) { g.receiver.Cancel(ticket.GetTransferId()) },
				func(err error) bool {
					return err == nil || failReason(err) == kvtransferv1.FailReason_FAIL_REASON_CANCELLED
				})
		}},
		{"the connections break", func(t *testing.T, g *rig) {
			endOverSocket(t, g, func(*kvtransfer.Transfer, *kvtransferv1.Ticket) { g.stop() }, isBroken)
		}},
		{"the device fails", func(t *testing.T, g *rig) {
			endOverSocket(t, g, func(tr *kvtransfer.Transfer, _ *kvtransferv1.Ticket) {
				g.to.Fail(errors.New("no such page"))
				tr.Send(1, 0, kvcache.BlockRange(0, 8))
			}, func(err error) bool { return failReason(err) == kvtransferv1.FailReason_FAIL_REASON_DEVICE })
		}},
	} {
		for _, network := range []string{"tcp", "unix", "shm"} {
			for _, streams := range []int{1, 3} {
				for _, pages := range pageKinds {
					if pages.mapped {
						continue // that is "shm"
					}
					t.Run(fmt.Sprintf("%s, %s, %d streams, %s pages", test.name, network, streams, pages.name), func(t *testing.T) {
						test.run(t, newSocketRig(t, network, streams, pages.kind(t)))
					})
				}
			}
		}
	}
}

func transferSideBySide(t *testing.T, g *rig) {
	var transfers sync.WaitGroup
	for i := range 8 {
		transfers.Go(func() {
			source, target := kvcache.BlockRange(i*8, 8), kvcache.BlockRange(56-i*8, 8)
			ticket, o := g.reserve(target, 0, 8)
			tr := g.open(ticket)
			sendAll(tr, source, 0, 3)
			tr.Commit(nil)
			wait(t, "committed", o.over)
			wait(t, "done", tr.Done())
			g.checkPages(source, target)
		})
	}
	transfers.Wait()
	if s := g.receiver.Stats(); s.Streams != g.streams || s.Committed != 8 {
		t.Errorf("stats %+v", s)
	}
}

// endOverSocket ends a partly sent transfer and waits until both sides are done.
func endOverSocket(t *testing.T, g *rig, end func(*kvtransfer.Transfer, *kvtransferv1.Ticket), want func(error) bool) {
	ticket, o := g.reserve(kvcache.BlockRange(0, 8), 0, 8)
	tr := g.open(ticket)
	tr.Send(0, 0, kvcache.BlockRange(0, 8))
	end(tr, ticket)
	wait(t, "done", tr.Done())
	wait(t, "drained", o.over)
	if !want(tr.Err()) || tr.Err() == nil || !want(o.err) {
		t.Errorf("ended with %v at the sender and %v at the receiver", tr.Err(), o.err)
	}
	if s := g.receiver.Stats(); s.Reserved+s.Open+s.Ending != 0 {
		t.Errorf("stats %+v", s)
	}
}
