package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/integration/faultstest"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

const (
	pairLayers     = 4
	pairSliceBytes = 200
	pairBlocks     = 64 // of each side's pool
	promptBlocks   = 8  // of one transfer
)

// pair is a sender and a receiver with nothing around them, joined by a proxy.
type pair struct {
	t        *testing.T
	network  string
	times    pairTimes
	streams  int
	from, to *kvtransfertest.Pages
	proxy    *faultstest.Proxy
	sender   *kvtransfer.Sender
	receiver *kvtransfer.Receiver
	// stopReceiver ends the receiver as a SIGKILL does: no connection of it says
	// goodbye.
	stopReceiver func()
}

// pairStreams are how many streams senders of pairs have.
var pairStreams = []int{1, 3}

// pairPages are the two kinds of pages that both sides of pairs have: such as KV is
// copied straight into before its checksum is known, and a device's.
var pairPages = []struct {
	name string
	make func(kvcache.Layout, int) *kvtransfertest.Pages
}{{"host", kvtransfertest.NewHostPages}, {"device", kvtransfertest.NewPages}}

// pairTimes are how long the sides wait for each other.
type pairTimes struct{ lease, answer, connect time.Duration }

func newPair(t *testing.T, network string, streams int, pages func(kvcache.Layout, int) *kvtransfertest.Pages, times pairTimes) *pair {
	t.Helper()
	layout := kvtransfertest.Layout(pairLayers, pairSliceBytes)
	p := &pair{
		t: t, network: network, times: times, streams: streams,
		from: pages(layout, pairBlocks), to: pages(layout, pairBlocks),
	}
	if network == "shm" {
		var free func() error
		var err error
		if p.to, free, err = kvtransfertest.NewSharedPages(layout, pairBlocks); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := free(); err != nil {
				t.Error(err)
			}
		})
	}
	for b := range pairBlocks {
		p.from.Fill(kvcache.BlockID(b), byte(b)*3+1)
	}
	p.receiver, p.stopReceiver = p.startReceiver(7)
	p.sender = p.newSender("prefill-0", 9, network == "shm")
	t.Cleanup(func() {
		p.proxy.Cut() // the other side may be unable to answer
		p.closeSender(p.sender)
	})
	return p
}

// listenKV listens as a receiver of KV does, and returns the address.
func listenKV(t testing.TB, network string) (listener net.Listener, address string) {
	t.Helper()
	address = faultstest.Address(t, network)
	listener, err := kvtransfer.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	if network == "tcp" {
		address = listener.Addr().String()
	}
	return listener, address
}

// listenPages listens where receivers pass their pages' descriptor.
func listenPages(t testing.TB) (listener *net.UnixListener, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "p")
	listener, err := kvtransfer.ListenPages(path)
	if err != nil {
		t.Fatal(err)
	}
	return listener, path
}

// startReceiver starts a receiver, with pages of its own, behind the proxy.
func (p *pair) startReceiver(epoch uint64) (receiver *kvtransfer.Receiver, stop func()) {
	p.t.Helper()
	listener, address := listenKV(p.t, p.network)
	if p.proxy == nil {
		p.proxy = faultstest.NewProxy(p.t, p.network, address)
	}
	p.proxy.Retarget(address)
	cfg := kvtransfer.ReceiverConfig{
		WorkerID: "decode-0", Epoch: epoch, Addresses: []string{p.proxy.Address()}, Layout: p.to.Layout(),
		Lease: p.times.lease, CreditBytes: 8 * pairSliceBytes, MaxChunkBytes: 3 * pairSliceBytes,
		ShutdownGrace: 50 * time.Millisecond,
	}
	var sharing *net.UnixListener
	if p.network == "shm" {
		sharing, cfg.PagesSocket = listenPages(p.t)
	}
	receiver, err := kvtransfer.NewReceiver(cfg, p.to)
	if err != nil {
		p.t.Fatal(err)
	}
	server := rpc.NewServer(kvtransfer.Serving(rpc.ServerConfig{}))
	receiver.Register(server)
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() { _ = server.Serve(listener) }) // ends with Stop
	tasks.Go(func() {
		if err := receiver.Run(ctx); err != nil {
			p.t.Errorf("receiver: %v", err)
		}
	})
	if sharing != nil {
		tasks.Go(func() {
			if err := receiver.ServePages(context.Background(), sharing); err != nil {
				p.t.Errorf("pages: %v", err)
			}
		})
	}
	stop = sync.OnceFunc(func() {
		if sharing != nil {
			_ = sharing.Close()
		}
		ended, now := context.WithCancel(context.Background())
		now()
		_ = server.Stop(ended) // it says that calls were cut off
		cancel()
		tasks.Wait()
	})
	p.t.Cleanup(stop)
	return receiver, stop
}

// newSender makes a sender that maps the receiver's pages over "shm", and if onlyMapped does
// nothing else.
func (p *pair) newSender(id string, epoch uint64, onlyMapped bool) *kvtransfer.Sender {
	p.t.Helper()
	cfg := kvtransfer.SenderConfig{
		WorkerID: id, Epoch: epoch, Layout: p.from.Layout(), Streams: p.streams,
		AnswerTimeout: p.times.answer, ConnectTimeout: p.times.connect,
		Dial: func(address string) (*grpc.ClientConn, error) {
			return rpc.Dial(address, kvtransfer.Dialing(rpc.ClientConfig{}))
		},
	}
	if p.network == "shm" {
		cfg.MapPages, cfg.OnlyMapped = kvtransfer.MapPages, onlyMapped
	}
	sender, err := kvtransfer.NewSender(cfg, p.from)
	if err != nil {
		p.t.Fatal(err)
	}
	return sender
}

func (p *pair) closeSender(s *kvtransfer.Sender) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.Close(ctx)
}

// delivery is one reservation: its blocks on both sides, and how it ended.
type delivery struct {
	pair           *pair
	source, target []kvcache.BlockID
	sampled        []int32
	ticket         *kvtransferv1.Ticket
	over           chan struct{} // closed at Committed or Drained

	mu        sync.Mutex
	committed bool
	failed    error
	wrong     error // what was committed although it is not what was sent
}

// reserve makes a reservation of promptBlocks blocks from target on.
func (p *pair) reserve(receiver *kvtransfer.Receiver, source, target int, sampled ...int32) *delivery {
	p.t.Helper()
	d := &delivery{pair: p, sampled: sampled, over: make(chan struct{})}
	for i := range promptBlocks {
		d.source = append(d.source, kvcache.BlockID(source+i))
		d.target = append(d.target, kvcache.BlockID(target+i))
		p.to.Fill(d.target[i], 0xEE)
	}
	ticket, err := receiver.Reserve(kvtransfer.Reservation{
		RequestID: "a request", Blocks: d.target, PromptBlocks: promptBlocks,
		Committed: func(a kvtransfer.Arrival) {
			d.end(func() { d.committed, d.wrong = true, d.compare(a.Sampled) })
			close(d.over)
		},
		Failed:  func(err error) { d.end(func() { d.failed = err }) },
		Drained: func() { close(d.over) },
	})
	if err != nil {
		p.t.Fatal(err)
	}
	d.ticket = ticket
	return d
}

func (d *delivery) end(how func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.committed || d.failed != nil {
		d.wrong = errors.New("the reservation ended twice")
	}
	how()
}

// compare says what is wrong with what was committed.
func (d *delivery) compare(sampled []int32) error {
	if fmt.Sprint(sampled) != fmt.Sprint(d.sampled) {
		return fmt.Errorf("tokens %v were committed, %v were sent", sampled, d.sampled)
	}
	for i := range d.source {
		if !bytes.Equal(d.pair.from.Page(d.source[i]), d.pair.to.Page(d.target[i])) {
			return fmt.Errorf("block %d was committed and is not what was sent", i)
		}
	}
	return nil
}

// result is how it ended, once over is closed.
func (d *delivery) result() (committed bool, failed, wrong error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.committed, d.failed, d.wrong
}

// send carries a delivery to its end, and says how it ended for the sender.
func (d *delivery) send(sender *kvtransfer.Sender) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	transfer, err := sender.Open(ctx, d.ticket, "a request")
	if err != nil {
		return err
	}
	d.offer(transfer, 0, promptBlocks)
	transfer.Commit(d.sampled)
	select {
	case <-transfer.Done():
		return transfer.Err()
	case <-ctx.Done():
		return fmt.Errorf("the transfer has no end: %w", ctx.Err())
	}
}

// offer offers all layers of some blocks.
func (d *delivery) offer(transfer *kvtransfer.Transfer, first, end int) {
	for layer := range pairLayers {
		transfer.Send(layer, first, d.source[first:end])
	}
}

// await fails the test if a channel is not closed in time.
func await(t testing.TB, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(timeout):
		t.Fatalf("%s: not within %v", what, timeout)
	}
}
