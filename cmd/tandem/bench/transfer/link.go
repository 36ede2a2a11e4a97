package transfer

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/rpc"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// Epochs of the two sides of every measurement.
const (
	receiverEpoch = 7
	senderEpoch   = 9
)

// senderID is who sends, also by its certificate.
const senderID = "prefill"

const closeTimeout = 5 * time.Second

// sink is a receiver behind a gRPC server on a socket, as a worker has it.
type sink struct {
	receiver *kvtransfer.Receiver
	server   *rpc.Server
	pages    *net.UnixListener // passes the pages' descriptor; nil: they are not shared
	cancel   context.CancelFunc
	tasks    sync.WaitGroup
}

// newSink receives into pages over a transport; Unix sockets lie in dir. A lease of 0
// is the default; without security nothing is encrypted.
func newSink(layout kvcache.Layout, to engine.Pages, transport, dir string, lease time.Duration, secure *security) (*sink, error) {
	address := "127.0.0.1:0"
	if transport != TCP {
		address = api.UnixScheme + filepath.Join(dir, transport+".sock")
	}
	listener, err := kvtransfer.Listen(address)
	if err != nil {
		return nil, err
	}
	if transport == TCP {
		address = listener.Addr().String()
	}
	cfg := kvtransfer.ReceiverConfig{WorkerID: "decode", Epoch: receiverEpoch, Layout: layout, Addresses: []string{address}, Lease: lease}
	s := &sink{}
	if transport == Shm {
		cfg.PagesSocket = filepath.Join(dir, "kv.pages")
		if s.pages, err = kvtransfer.ListenPages(cfg.PagesSocket); err != nil {
			_ = listener.Close() // nothing came in
			return nil, err
		}
	}
	receiver, err := kvtransfer.NewReceiver(cfg, to)
	if err != nil {
		_ = listener.Close()
		s.closePages()
		return nil, err
	}
	s.receiver = receiver
	s.server = rpc.NewServer(kvtransfer.Serving(rpc.ServerConfig{
		Name: "bench-kv", MaxReceiveBytes: receiver.MaxMessageBytes(), Credentials: secure.server(),
	}))
	receiver.Register(s.server)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.tasks.Go(func() { _ = s.server.Serve(listener) }) // close ends it
	s.tasks.Go(func() { _ = receiver.Run(ctx) })
	if s.pages != nil {
		s.tasks.Go(func() { _ = receiver.ServePages(context.Background(), s.pages) }) // close ends it
	}
	return s, nil
}

func (s *sink) closePages() {
	if s.pages != nil {
		_ = s.pages.Close() // nobody waits for it
	}
}

func (s *sink) close() {
	s.closePages()
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = s.server.Stop(ctx) // what is cut off was over
	s.tasks.Wait()
}

// arrival is one reservation: over is closed when its blocks are the owner's again.
type arrival struct {
	ticket *kvtransferv1.Ticket
	over   chan struct{}
	at     time.Time // when that was; valid once over is closed
	err    error     // why it was not committed; the same
}

// reserve lets a sender fill blocks.
func (s *sink) reserve(blocks []kvcache.BlockID) (*arrival, error) {
	a := &arrival{over: make(chan struct{})}
	ticket, err := s.receiver.Reserve(kvtransfer.Reservation{
		Blocks: blocks, PromptBlocks: len(blocks), Sender: senderID,
		Committed: func(kvtransfer.Arrival) {
			a.at = time.Now()
			close(a.over)
		},
		Failed: func(err error) { a.err = err },
		Drained: func() {
			a.at = time.Now()
			close(a.over)
		},
	})
	a.ticket = ticket
	return a, err
}

// newSource sends out of pages over a transport.
func newSource(layout kvcache.Layout, from engine.Pages, transport string, connections int, secure *security) (*kvtransfer.Sender, error) {
	cfg := kvtransfer.SenderConfig{
		WorkerID: senderID, Epoch: senderEpoch, Layout: layout, Streams: connections,
		Dial: func(address string) (*grpc.ClientConn, error) {
			return rpc.Dial(address, kvtransfer.Dialing(rpc.ClientConfig{Name: "bench-kv", Credentials: secure.client()}))
		},
	}
	if transport == Shm {
		cfg.MapPages, cfg.OnlyMapped = kvtransfer.MapPages, true
	}
	return kvtransfer.NewSender(cfg, from)
}

// closeSource closes what newSource made. What is cut off was over, or has nobody to hear
// of its end.
func closeSource(sender *kvtransfer.Sender) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = sender.Close(ctx)
}

// link is a sender and a receiver in this process.
type link struct {
	*sink
	sender *kvtransfer.Sender
	from   engine.Pages
	layers int
}

func newLink(from, to engine.Pages, transport, dir string, connections int, secure *security) (*link, error) {
	layout := from.Layout()
	s, err := newSink(layout, to, transport, dir, 0, secure)
	if err != nil {
		return nil, err
	}
	sender, err := newSource(layout, from, transport, connections, secure)
	if err != nil {
		s.close()
		return nil, err
	}
	return &link{sink: s, sender: sender, from: from, layers: layout.Layers}, nil
}

func (l *link) close() {
	closeSource(l.sender)
	l.sink.close()
}

// moved is one transfer that was committed.
type moved struct {
	// begun and committed are when its blocks were about to be reserved, and when the
	// receiver's owner was told.
	begun, committed time.Time
	chunks           int
	// copied is the bytes that were copied from the sender's pages.
	copied uint64
}

// move moves blocks to the same blocks of the other side. offer offers every layer;
// nil: all at once.
func (l *link) move(ctx context.Context, blocks []kvcache.BlockID, offer func(*kvtransfer.Transfer) error) (moved, error) {
	m := moved{begun: time.Now()}
	a, err := l.reserve(blocks)
	if err != nil {
		return m, err
	}
	t, err := l.sender.Open(ctx, a.ticket, "bench")
	if err != nil {
		l.receiver.Cancel(a.ticket.GetTransferId())
		return m, err
	}
	if offer == nil {
		offer = func(t *kvtransfer.Transfer) error { l.offer(t, blocks); return nil }
	}
	if err := offer(t); err != nil {
		t.Abort(kvtransferv1.AbortReason_ABORT_REASON_CANCELLED)
		<-t.Done()
		return m, err
	}
	t.Commit([]int32{1})
	select {
	case <-t.Done():
	case <-ctx.Done():
		t.Abort(kvtransferv1.AbortReason_ABORT_REASON_CANCELLED)
		<-t.Done()
	}
	if err := t.Err(); err != nil {
		return m, fmt.Errorf("a transfer was not committed: %w", err)
	}
	<-a.over
	sent := t.Stats()
	m.committed, m.chunks, m.copied = a.at, sent.Chunks, sent.Bytes-sent.Stored
	return m, nil
}

// store does what an engine does with one layer of blocks where the receiver's pages are mapped: what
// it stores in its own, it stores in those too.
func (l *link) store(m engine.Mirror, layer int, blocks []kvcache.BlockID) {
	if m == nil || !m.Hold(layer) {
		return
	}
	defer m.Release()
	for i, block := range blocks {
		copy(m.View(layer, i), l.from.View(layer, block))
	}
}

func (l *link) offer(t *kvtransfer.Transfer, blocks []kvcache.BlockID) {
	for layer := range l.layers {
		t.Send(layer, 0, blocks)
	}
}
