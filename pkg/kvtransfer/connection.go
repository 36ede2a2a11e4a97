package kvtransfer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pkg/coreloop"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	"github.com/tandem-serving/tandem/pkg/rpc"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

var (
	// errConnectionOver is returned by an open on a connection that has ended.
	errConnectionOver = errors.New("the connection has ended")
	// errUnanswered is returned by an open on a connection that was there before, if it was lost
	// before the receiver answered.
	errUnanswered = errors.New("the session ended before the receiver answered")
)

// connection is one session with one receiver, from dialling to its end. It is not reused.
type connection struct {
	sender    *Sender
	peer      peer
	addresses []string
	ticket    *kvtransferv1.Ticket // of the first transfer
	ctx       context.Context
	cancel    context.CancelFunc
	ready     chan struct{}   // closed when loop or err is set
	ended     chan struct{}   // closed when all its goroutines have ended
	stripes   []chan struct{} // wakes the writer of each stream
	opening   atomic.Int32    // how many wait for it to be ready, or begin a transfer
	unwanted  atomic.Bool     // it is to end once it has no transfers

	// Set before ready is closed.
	loop      *coreloop.Loop[*sender.Core, sender.Event, sender.Action]
	transport string
	address   string                    // that answered
	shared    *kvtransferv1.SharedPages // how the receiver's pages can be mapped; nil: they cannot
	err       error                     // why loop is nil

	// Guarded by loop.
	brokeOff  bool // by this side: the receiver broke the protocol, or was silent
	transfers map[uint64]*Transfer
	idle      []*chunkInFlight // for reuse
	loans     map[uint64]*chunkInFlight
	returned  *sync.Cond         // on loop: no loans are left
	windows   map[uint64]*window // of transfers that write into mapping
	mapping   MappedPages        // of the receiver; nil: its pages are not mapped
	mapAgain  time.Time          // when a transfer may try to map them, or use mapping again; zero: they need no try
	mapPause  time.Duration      // before that
	maps      sync.WaitGroup     // tries in progress; none begins once the session is lost
}

func newConnection(s *Sender, to peer, addresses []string, ticket *kvtransferv1.Ticket) *connection {
	c := &connection{
		sender:    s,
		peer:      to,
		addresses: addresses,
		ticket:    ticket,
		ready:     make(chan struct{}),
		ended:     make(chan struct{}),
		stripes:   make([]chan struct{}, s.cfg.Streams),
		transfers: map[uint64]*Transfer{},
		loans:     map[uint64]*chunkInFlight{},
		windows:   map[uint64]*window{},
	}
	for i := range c.stripes {
		c.stripes[i] = make(chan struct{}, 1)
	}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	return c
}

// run dials, ticks the core while the session lives, and cleans up.
func (c *connection) run() {
	defer close(c.ended)
	defer c.cancel()
	defer c.sender.drop(c)
	address, links, err := c.dial()
	var unmapped error
	if err == nil {
		c.address = address
		unmapped = c.mapFirst(links[0].hello)
		if unmapped != nil && c.sender.cfg.OnlyMapped {
			closeLinks(links)
			err = &BrokenError{Peer: c.peer.receiver, Err: unmapped}
		}
	}
	if err != nil {
		c.err = err
	} else {
		c.loop, c.transport = coreloop.New(sender.New(c.coreConfig(links), time.Now()), c.apply), transportOf(address)
		c.returned = sync.NewCond(c.loop)
	}
	close(c.ready)
	if err != nil {
		return
	}
	c.endUnwanted()
	log := c.sender.cfg.Logger.With(slog.String("receiver", c.peer.receiver))
	open := []any{slog.String("address", address), slog.Int("streams", len(links)), slog.Bool("mapped", unmapped == nil)}
	if unmapped != nil && c.sender.cfg.MapPages != nil {
		open = append(open, slog.String("why_not_mapped", unmapped.Error()))
	}
	log.Info("kv session is open", open...)

	var tasks sync.WaitGroup
	for i, l := range links {
		tasks.Go(func() { c.read(l.stream, i) })
		tasks.Go(func() { c.write(l.stream, i) })
	}
	c.loop.Run(c.ctx.Done(), func() { c.loop.Handle(sender.Tick{}) })
	for _, l := range links {
		l.cancel(context.Canceled)
	}
	c.loop.Handle(sender.StreamLost{Err: context.Cause(c.ctx)})
	tasks.Wait()
	c.awaitLoans()
	c.maps.Wait()
	c.shutAll()
	if c.mapping != nil {
		c.mapping.Close() // nobody writes any more
	}
	closeLinks(links)
	log.Info("kv session has ended")
}

// close ends the connection after its transfers, or dialling at once.
func (c *connection) close() {
	switch {
	case !isClosed(c.ready):
		c.cancel()
	case c.loop != nil:
		c.loop.Handle(sender.Close{})
	}
}

// endUnwanted ends the connection if it is to and has no transfers, nor will have one at once. It says
// whether it does.
func (c *connection) endUnwanted() bool {
	if !c.unwanted.Load() || !isClosed(c.ready) || c.loop == nil {
		return false
	}
	c.loop.Lock()
	defer c.loop.Unlock()
	if len(c.transfers) > 0 || c.opening.Load() > 0 {
		return false
	}
	c.loop.Step(sender.Close{}) // a later open finds the session lost
	return true
}

// open waits for the session, then for the receiver's Accept or Refuse.
func (c *connection) open(ctx context.Context, ticket *kvtransferv1.Ticket, requestID string) (*Transfer, error) {
	wasReady := isClosed(c.ready)
	t, err := c.beginReady(ctx, ticket, requestID)
	if err != nil {
		return nil, err
	}
	select {
	case <-t.accepted:
		if t.window == nil {
			return t, nil
		}
		if err := t.window.openPages(); err != nil {
			t.Abort(kvtransferv1.AbortReason_ABORT_REASON_FAILED)
			if _, mayNot := errors.AsType[*os.SyscallError](err); !mayNot { // the session is lost, or has no such pages
				return nil, &BrokenError{Peer: c.peer.receiver, Err: err}
			}
			c.spareMapping()
			return nil, fmt.Errorf("kv session with %q: %w", c.peer.receiver, err)
		}
		c.useMapping()
		return t, nil
	case <-t.done:
		if wasReady && c.leftUnanswered(t) {
			return nil, fmt.Errorf("%w: %w", errUnanswered, t.Err())
		}
		return nil, t.Err()
	case <-ctx.Done():
		t.Abort(kvtransferv1.AbortReason_ABORT_REASON_CANCELLED)
		return nil, fmt.Errorf("wait for the accept of %q: %w", c.peer.receiver, context.Cause(ctx))
	}
}

// leftUnanswered reports whether a transfer ended because the session was lost before the
// receiver answered.
func (c *connection) leftUnanswered(t *Transfer) bool {
	c.loop.Lock()
	defer c.loop.Unlock()
	_, broken := errors.AsType[*BrokenError](t.err)
	return broken && !isClosed(t.accepted) && !c.brokeOff
}

// beginReady begins a transfer once the session is there.
func (c *connection) beginReady(ctx context.Context, ticket *kvtransferv1.Ticket, requestID string) (*Transfer, error) {
	c.opening.Add(1)
	defer func() {
		c.opening.Add(-1)
		c.endUnwanted()
	}()
	opened := time.Now()
	select {
	case <-c.ready:
	case <-ctx.Done():
		return nil, fmt.Errorf("connect to %q: %w", c.peer.receiver, context.Cause(ctx))
	}
	c.mapLater(ticket)
	t := &Transfer{
		conn: c, id: ticket.GetTransferId(), opened: opened,
		accepted: make(chan struct{}), released: make(chan struct{}), done: make(chan struct{}),
	}
	return t, c.begin(t, ticket, requestID, rpc.TraceParent(trace.SpanContextFromContext(ctx)))
}

func (c *connection) begin(t *Transfer, ticket *kvtransferv1.Ticket, requestID, traceParent string) error {
	if c.err != nil {
		return c.err
	}
	c.loop.Lock()
	defer c.loop.Unlock()
	switch {
	case c.loop.Core.Lost():
		return errConnectionOver
	case c.transfers[t.id] != nil:
		return &RefusedError{Reason: kvtransferv1.RefuseReason_REFUSE_REASON_ALREADY_OPEN, Detail: "a ticket can be used only once"}
	}
	c.transfers[t.id] = t
	t.stats.Transport = c.transport
	t.held = int(ticket.GetHeldBlocks())
	encoding, sliceBytes := c.encoding(ticket)
	switch encoding {
	case kvtransferv1.Encoding_ENCODING_LENT:
		t.stats.Transport = transportDevice
	case kvtransferv1.Encoding_ENCODING_SHARED:
		t.stats.Transport = TransportShm
	}
	c.loop.Step(sender.Open{
		Ticket: ticket, Lease: ticket.GetLease().AsDuration(), RequestID: requestID, TraceParent: traceParent,
		Encoding: encoding, EncodedBytes: sliceBytes})
	return nil
}

// apply carries out the core's actions except writes, which toWrite returns to the writer.
// Requires c.loop.
func (c *connection) apply(_ time.Time, actions []sender.Action) {
	for _, a := range actions {
		switch a := a.(type) {
		case sender.Wake:
			poke(c.stripes[a.Stripe])
		case sender.Recall:
			c.recall(a.ID)
		case sender.Accepted:
			t := c.transfers[a.ID]
			t.stats.Accepted = time.Since(t.opened)
			if t.stats.Transport == TransportShm {
				t.window = newWindow(c.mapping, t.held, a.Pages)
				c.windows[a.ID] = t.window
			}
			close(t.accepted)
		case sender.Released:
			close(c.transfers[a.ID].released)
		case sender.Ended:
			c.transfers[a.ID].end(a)
			delete(c.transfers, a.ID)
			if c.unwanted.Load() {
				c.loop.After(func() { c.endUnwanted() })
			}
		case sender.CloseStream:
			if a.Err != nil {
				c.brokeOff = true
				c.sender.cfg.Logger.Warn("kv session broke off",
					slog.String("receiver", c.peer.receiver), slog.Any("error", a.Err))
			}
			c.cancel()
		}
	}
}

// poke sends on a channel of capacity 1 without blocking.
func poke(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// resultError converts a transfer's result to an error.
func (c *connection) resultError(r sender.Result) error {
	switch r.End {
	case sender.EndCommitted:
		return nil
	case sender.EndRefused:
		return &RefusedError{Reason: r.Refuse, Detail: r.Detail}
	case sender.EndFailed:
		return &FailedError{Reason: r.Fail, Detail: r.Detail}
	case sender.EndAborted:
		if r.Err != nil {
			return fmt.Errorf("%w: %w", &AbortedError{Reason: r.Abort}, r.Err)
		}
		return &AbortedError{Reason: r.Abort}
	default:
		return &BrokenError{Peer: c.peer.receiver, Err: r.Err}
	}
}
