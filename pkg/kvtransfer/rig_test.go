package kvtransfer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

const (
	layers     = 3
	sliceBytes = 100
	poolBlocks = 64
	// stagingCount is how many staging buffers pages have that have some.
	stagingCount = 3
	lease        = 10 * time.Second
)

// rig is a sender and a receiver connected by an in-memory pipe.
type rig struct {
	t         *testing.T
	from, to  *kvtransfertest.Pages
	sender    *kvtransfer.Sender
	receiver  *kvtransfer.Receiver
	listener  *bufconn.Listener
	stop      func() // stops the receiver's server and its connections
	streams   int    // per session
	mapped    bool   // senders map the receiver's pages
	mapError  error  // why they cannot, once they were given them
	mapLate   bool   // they are asked for at the end of the context only
	openError error  // why pages that are mapped cannot be opened
	mapTries  int    // how often one has asked for them

	mu       sync.Mutex
	mappings []*kvtransfertest.Mapping
}

func newListener() *bufconn.Listener { return bufconn.Listen(1 << 20) }

// rigConfig configures a rig.
type rigConfig struct {
	receiver kvtransfer.ReceiverConfig
	sender   kvtransfer.SenderConfig
	pages    func(kvcache.Layout, int) *kvtransfertest.Pages
	mapped   bool
	serving  grpc.StreamServerInterceptor
}

type option func(*rigConfig)

// pageKind returns a constructor for both sides' pages.
type pageKind func(t *testing.T) func(kvcache.Layout, int) *kvtransfertest.Pages

func hostPages(*testing.T) func(kvcache.Layout, int) *kvtransfertest.Pages {
	return kvtransfertest.NewHostPages
}

func devicePages(*testing.T) func(kvcache.Layout, int) *kvtransfertest.Pages {
	return kvtransfertest.NewPages
}

// stagingPages are pages of a device with a few staging buffers.
func stagingPages(*testing.T) func(kvcache.Layout, int) *kvtransfertest.Pages {
	return func(layout kvcache.Layout, blocks int) *kvtransfertest.Pages {
		return kvtransfertest.NewStagingPages(layout, blocks, stagingCount, 2<<10)
	}
}

// sharedPages are pages of one device, so that slices are lent.
func sharedPages(*testing.T) func(kvcache.Layout, int) *kvtransfertest.Pages {
	return kvtransfertest.NewDevice()
}

// pageKinds lists the kinds of pages to test. Those that are mapped are written by the sender.
var pageKinds = []struct {
	name   string
	kind   pageKind
	mapped bool
}{{"host", hostPages, false}, {"device", devicePages, false}, {"staging", stagingPages, false}, {"shared", sharedPages, false}, {"mapped", hostPages, true}}

// overStreams runs a test in a synctest bubble, with sessions of one stream and of several,
// and with both kinds of pages.
func overStreams(t *testing.T, test func(t *testing.T, streams option)) {
	for _, streams := range []int{1, 3} {
		for _, pages := range pageKinds {
			t.Run(fmt.Sprintf("%d streams, %s pages", streams, pages.name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					test(t, func(c *rigConfig) { c.sender.Streams, c.pages, c.mapped = streams, pages.kind(t), pages.mapped })
				})
			})
		}
	}
}

func newRig(t *testing.T, options ...option) *rig {
	t.Helper()
	layout := kvtransfertest.Layout(layers, sliceBytes)
	g := &rig{t: t, listener: newListener()}
	c := rigConfig{
		receiver: kvtransfer.ReceiverConfig{
			WorkerID: "decode-0", Epoch: 7, Addresses: []string{"passthrough:///memory"}, Layout: layout,
			Lease: lease, CreditBytes: 2000, MaxChunkBytes: 450,
		},
		sender: kvtransfer.SenderConfig{WorkerID: "prefill-0", Epoch: 9, Layout: layout, Dial: g.dial},
		pages:  kvtransfertest.NewHostPages,
	}
	for _, o := range options {
		o(&c)
	}
	g.streams, g.mapped = max(c.sender.Streams, 1), c.mapped
	if c.mapped {
		c.receiver.PagesSocket, c.sender.MapPages = "memory", g.mapPages
	}
	g.from, g.to = c.pages(c.sender.Layout, poolBlocks), c.pages(c.receiver.Layout, poolBlocks)
	for b := range poolBlocks {
		g.from.Fill(kvcache.BlockID(b), 1)
	}
	var err error
	if g.receiver, err = kvtransfer.NewReceiver(c.receiver, g.to); err != nil {
		t.Fatal(err)
	}
	if g.sender, err = kvtransfer.NewSender(c.sender, g.from); err != nil {
		t.Fatal(err)
	}
	serving := []grpc.ServerOption{grpc.ForceServerCodecV2(wire.Codec())}
	if c.serving != nil {
		serving = append(serving, grpc.StreamInterceptor(c.serving))
	}
	server := grpc.NewServer(serving...)
	g.receiver.Register(server)
	g.stop = server.Stop
	var tasks sync.WaitGroup
	listener := g.listener // tests may replace it
	tasks.Go(func() { _ = server.Serve(listener) })
	ctx, cancel := context.WithCancel(context.Background())
	tasks.Go(func() {
		if err := g.receiver.Run(ctx); err != nil {
			t.Errorf("receiver: %v", err)
		}
	})
	t.Cleanup(func() {
		closing, done := context.WithTimeout(context.Background(), time.Minute)
		defer done()
		if err := g.sender.Close(closing); err != nil {
			t.Errorf("sender: %v", err)
		}
		cancel()
		g.stop()
		tasks.Wait()
	})
	return g
}

// checkShut checks that no sender can write a page, and that one did if they are mapped.
func (g *rig) checkShut() {
	g.t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mapped != (len(g.mappings) > 0) {
		g.t.Errorf("the pages were mapped %d times", len(g.mappings))
	}
	for _, m := range g.mappings {
		if n := m.Opened(); n > 0 {
			g.t.Errorf("%d pages are open to a sender", n)
		}
	}
}

// checkNoSession checks that the receiver has no sessions.
func (g *rig) checkNoSession() {
	g.t.Helper()
	synctest.Wait()
	if n := g.receiver.Stats().Streams; n != 0 {
		g.t.Errorf("%d streams when the sessions have ended", n)
	}
}

// mapPages maps the receiver's pages for the sender, within this process.
func (g *rig) mapPages(ctx context.Context, r kvtransfer.MapRequest) (kvtransfer.MappedPages, error) {
	g.mu.Lock()
	g.mapTries++
	g.mu.Unlock()
	if g.mapLate {
		<-ctx.Done()
	}
	detached, err := g.receiver.Attach(r.Key, r.TransferID, r.Secret)
	if err != nil {
		return nil, err
	}
	if g.mapError != nil {
		detached()
		return nil, g.mapError
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	m := kvtransfertest.NewMapping(g.to, detached, g.t.Errorf)
	g.mappings = append(g.mappings, m)
	return openedPages{m, g}, nil
}

// openedPages are mapped pages that open unless the rig has an error.
type openedPages struct {
	*kvtransfertest.Mapping
	rig *rig
}

func (p openedPages) Open(blocks []kvcache.BlockID) error {
	if p.rig.openError != nil {
		return p.rig.openError
	}
	return p.Mapping.Open(blocks)
}

func (g *rig) dial(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return g.listener.DialContext(ctx) }))
}

// outcome records the callbacks of one reservation and checks their order.
type outcome struct {
	t           *testing.T
	mu          sync.Mutex
	committed   bool
	sampled     []int32
	bytes       uint64
	approximate bool
	err         error
	drained     bool
	over        chan struct{} // closed at Committed or Drained
}

func (o *outcome) reservation(blocks []kvcache.BlockID, held, prompt int) kvtransfer.Reservation {
	return kvtransfer.Reservation{
		RequestID: "r", Blocks: blocks, HeldBlocks: held, PromptBlocks: prompt,
		Committed: func(a kvtransfer.Arrival) {
			o.mu.Lock()
			defer o.mu.Unlock()
			if o.committed || o.err != nil || o.drained {
				o.t.Error("committed after an end")
			}
			o.committed, o.sampled, o.bytes, o.approximate = true, a.Sampled, a.Bytes, a.Approximate
			close(o.over)
		},
		Failed: func(err error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			if o.committed || o.err != nil || o.drained {
				o.t.Error("failed after an end")
			}
			o.err = err
		},
		Drained: func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			if o.committed || o.drained {
				o.t.Error("drained after an end")
			}
			o.drained = true
			close(o.over)
		},
	}
}

func (o *outcome) isDrained() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.drained
}

func (g *rig) reserve(blocks []kvcache.BlockID, held, prompt int) (*kvtransferv1.Ticket, *outcome) {
	g.t.Helper()
	o := &outcome{t: g.t, over: make(chan struct{})}
	ticket, err := g.receiver.Reserve(o.reservation(blocks, held, prompt))
	if err != nil {
		g.t.Fatal(err)
	}
	return ticket, o
}

func (g *rig) open(ticket *kvtransferv1.Ticket) *kvtransfer.Transfer {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tr, err := g.sender.Open(ctx, ticket, "r")
	if err != nil {
		g.t.Fatal(err)
	}
	return tr
}

// sendAll offers all slices that are not held, a few blocks at a time.
func sendAll(tr *kvtransfer.Transfer, source []kvcache.BlockID, held, atOnce int) {
	for first := held; first < len(source); first += atOnce {
		for layer := range layers {
			tr.Send(layer, first, source[first:min(first+atOnce, len(source))])
		}
	}
}

func (g *rig) checkPages(source, target []kvcache.BlockID) {
	g.t.Helper()
	for i := range source {
		if !bytes.Equal(g.from.Page(source[i]), g.to.Page(target[i])) {
			g.t.Errorf("block %d did not arrive as it was sent", i)
		}
	}
}

func (g *rig) checkEmpty(target []kvcache.BlockID) {
	g.t.Helper()
	for _, block := range target {
		if !bytes.Equal(g.to.Page(block), make([]byte, layers*sliceBytes)) {
			g.t.Errorf("block %d was written", block)
		}
	}
}

func wait(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%s: nothing came", what)
	}
}

func failReason(err error) kvtransferv1.FailReason {
	var failed *kvtransfer.FailedError
	if errors.As(err, &failed) {
		return failed.Reason
	}
	return 0
}

func refuseReason(err error) kvtransferv1.RefuseReason {
	var refused *kvtransfer.RefusedError
	if errors.As(err, &refused) {
		return refused.Reason
	}
	return 0
}

func abortReason(err error) kvtransferv1.AbortReason {
	var aborted *kvtransfer.AbortedError
	if errors.As(err, &aborted) {
		return aborted.Reason
	}
	return 0
}

func isBroken(err error) bool {
	var broken *kvtransfer.BrokenError
	return errors.As(err, &broken)
}
