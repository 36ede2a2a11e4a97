package sender

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/coverage"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/deadline"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// Config configures a core. Fields not marked optional are required.
type Config struct {
	// LayoutDigest, Layers and SliceBytes describe the pages.
	LayoutDigest       uint64
	Layers, SliceBytes int
	// CreditBytes are the initial credits of the session's streams, from their
	// ReceiverHellos, at least one chunk each. MaxChunkBytes is the receiver's too, at
	// least one slice.
	CreditBytes   []int
	MaxChunkBytes int
	// AnswerTimeout is how long the receiver may keep this side waiting, or the shortest
	// lease of the session's transfers if that is shorter.
	AnswerTimeout time.Duration
	// IdleTimeout is how long a session without transfers stays open.
	IdleTimeout time.Duration
	// Observe, if set, is called with every transition.
	Observe func(Transition)
}

// Core is the state machine of one session, created once all streams have a ReceiverHello.
// It is not safe for concurrent use.
type Core struct {
	cfg       Config
	table     cells
	transfers map[uint64]*transfer
	deadlines *deadline.Queue[timer]
	patience  time.Duration // minimum of AnswerTimeout and the leases
	stripes   []stripe
	ring      []*transfer // transfers with slices to send, each once, next first
	favour    int         // bytes that shortest-first may send before the next round-robin turn
	renewals  []*transfer // transfers for the next Renew
	segments  segments
	chunks    []*WriteChunk // for reuse
	pace      pace
	closing   bool
	gone      bool

	now time.Time
	out []Action
}

// stripe is one stream of the session.
type stripe struct {
	credit, most int
	granted      int    // bytes since the credit timer was set
	control      []note // sent before any chunk
	asleep       bool   // the writer waits for Wake
	wake         Action
}

// timer identifies a deadline of a transfer, a stripe or the session.
type timer struct {
	what     timerKind
	transfer uint64
	stripe   int
}

type timerKind int

const (
	transferTimer timerKind = iota // for an answer, or the next Renew
	writerTimer                    // for the stream to take a write
	creditTimer                    // for a grant of one chunk
	idleTimer                      // for a new transfer
)

// transfer is one transfer until the receiver owes nothing for it.
type transfer struct {
	ticket      *kvtransferv1.Ticket
	encoding    kvtransferv1.Encoding
	sliceBytes  int // bytes of one slice in a payload
	lease       time.Duration
	requestID   string
	traceParent string
	state       state

	lanes      []lane // by stripe
	commits    int    // lanes with Commit sent
	aborts     int    // lanes with Abort sent
	answered   bool   // Accept or Refuse was read
	accepted   bool
	offered    *coverage.Set
	backlog    backlog
	unsent     int // slices not given to a writer
	inRing     bool
	renewing   bool // in Core.renewals
	committing bool // the owner asked for Commit
	queued     bool // Commit was queued on every stripe
	sampled    []uint32
	abort      kvtransferv1.AbortReason
	reading    int    // chunks whose pages are being read
	result     Result // valid once End is not zero
	released   bool   // Released was emitted
	told       bool   // Ended was emitted
	paceBefore Pace   // of the session, when the transfer was opened
}

// lane is the part of a transfer on one stripe.
type lane struct {
	sequence  uint32
	abortSent bool
}

func (t *transfer) id() uint64 { return t.ticket.GetTransferId() }

// New returns a core without transfers. Time starts at now.
func New(cfg Config, now time.Time) *Core {
	c := &Core{
		cfg:       cfg,
		table:     shared,
		transfers: map[uint64]*transfer{},
		deadlines: deadline.New[timer](),
		patience:  cfg.AnswerTimeout,
	}
	for i, credit := range cfg.CreditBytes {
		c.stripes = append(c.stripes, stripe{credit: credit, most: credit, wake: Wake{Stripe: i}})
	}
	c.deadlines.Set(timer{what: idleTimer}, now.Add(cfg.IdleTimeout))
	return c
}

// Handle processes one event and returns the actions for it, in order. now must not go
// backwards. The actions are valid until the next call.
func (c *Core) Handle(now time.Time, ev Event) []Action {
	c.begin(now)
	switch ev := ev.(type) {
	case Open:
		c.open(ev)
	case Offer:
		c.to(ev.ID, onOffer, input{offer: ev})
	case Commit:
		c.to(ev.ID, onCommit, input{commit: ev})
	case Abort:
		c.to(ev.ID, onAbort, input{abort: ev.Reason})
	case Received:
		c.receive(ev)
	case WriterReady:
		c.next(ev.Stripe)
	case PagesRead:
		c.pagesRead(ev)
	case Tick:
		c.tick()
	case StreamLost:
		c.lose(ev.Err)
	case Close:
		c.closing = true
		for _, t := range c.sorted() {
			c.step(t, onAbort, input{abort: kvtransferv1.AbortReason_ABORT_REASON_CANCELLED})
		}
	}
	return c.end()
}

// HandleOffer is Handle for Offer. It does not allocate in the long run.
func (c *Core) HandleOffer(now time.Time, ev Offer) []Action {
	c.begin(now)
	c.to(ev.ID, onOffer, input{offer: ev})
	return c.end()
}

// HandleReceived is Handle for Received. It does not allocate for a Grant.
func (c *Core) HandleReceived(now time.Time, ev Received) []Action {
	c.begin(now)
	c.receive(ev)
	return c.end()
}

// HandleWriterReady is Handle for WriterReady. It does not allocate in the long run.
func (c *Core) HandleWriterReady(now time.Time, ev WriterReady) []Action {
	c.begin(now)
	c.next(ev.Stripe)
	return c.end()
}

// HandlePagesRead is Handle for PagesRead. It does not allocate.
func (c *Core) HandlePagesRead(now time.Time, ev PagesRead) []Action {
	c.begin(now)
	c.pagesRead(ev)
	return c.end()
}

func (c *Core) begin(now time.Time) {
	c.now, c.out = now, c.out[:0]
	c.pace.until(now)
}

func (c *Core) end() []Action {
	if c.closing && !c.gone && len(c.transfers) == 0 {
		c.closeStream(nil)
	}
	if !c.gone {
		c.wake()
	}
	c.pace.busy = c.busy()
	return c.out
}

// Next returns when the core wants a Tick; ok is false if it has no deadline.
func (c *Core) Next() (at time.Time, ok bool) { return c.deadlines.Next() }

// Lost reports that the session has ended, or that CloseStream was emitted.
func (c *Core) Lost() bool { return c.gone }

// Transfers is the number of transfers not yet forgotten.
func (c *Core) Transfers() int { return len(c.transfers) }

// Credit is the payload, in bytes, that a stripe may send without another Grant.
func (c *Core) Credit(stripe int) int { return c.stripes[stripe].credit }

func (c *Core) emit(a Action) { c.out = append(c.out, a) }

// to passes an event to a transfer, if it is not over.
func (c *Core) to(id uint64, k kind, in input) {
	if t := c.transfers[id]; t != nil {
		c.step(t, k, in)
	}
}

func (c *Core) open(ev Open) {
	id := ev.Ticket.GetTransferId()
	if c.gone || c.closing {
		c.emit(Released{ID: id})
		c.emit(Ended{ID: id, Result: Result{End: EndBroken, Err: errors.New("the session is closing")}})
		return
	}
	if c.transfers[id] != nil {
		c.emit(Ended{ID: id, Result: Result{
			End: EndRefused, Refuse: kvtransferv1.RefuseReason_REFUSE_REASON_ALREADY_OPEN, Detail: "a ticket can be used only once"}})
		return
	}
	blocks := max(int(ev.Ticket.GetBlocks())-int(ev.Ticket.GetHeldBlocks()), 0)
	t := &transfer{
		ticket:      ev.Ticket,
		encoding:    ev.Encoding,
		sliceBytes:  c.cfg.SliceBytes,
		lease:       ev.Lease,
		requestID:   ev.RequestID,
		traceParent: ev.TraceParent,
		lanes:       make([]lane, len(c.stripes)),
		offered:     coverage.New(c.cfg.Layers, blocks),
		unsent:      c.cfg.Layers * blocks,
		paceBefore:  c.pace.Pace,
	}
	if ev.EncodedBytes > 0 {
		t.sliceBytes = ev.EncodedBytes
	}
	c.transfers[id] = t
	c.patience = min(c.patience, t.lease)
	c.deadlines.Clear(timer{what: idleTimer})
	c.note(0, noteOpen, t)
}

func (c *Core) pagesRead(ev PagesRead) {
	w := ev.Chunk
	t := w.of
	if t == nil {
		return
	}
	bytes := w.Chunk.PayloadBytes
	w.of = nil
	c.chunks = append(c.chunks, w)
	t.reading--
	if ev.Err != nil {
		c.stripes[w.Stripe].credit += bytes
		c.step(t, onUnreadable, input{err: ev.Err})
		return
	}
	c.step(t, onRead, input{})
	c.release(t)
}

func (c *Core) tick() {
	for !c.gone {
		due, ok := c.deadlines.Pop(c.now)
		if !ok {
			return
		}
		switch due.what {
		case transferTimer:
			c.to(due.transfer, onDeadline, input{})
		case writerTimer:
			c.closeStream(fmt.Errorf("the receiver accepted nothing over stripe %d for %s", due.stripe, c.patience))
		case creditTimer:
			c.closeStream(fmt.Errorf("the receiver granted %d bytes over stripe %d in %s, less than one chunk", c.stripes[due.stripe].granted, due.stripe, c.patience))
		case idleTimer:
			c.closeStream(nil)
		}
	}
}

// closeStream ends the session and all its transfers.
func (c *Core) closeStream(err error) {
	if c.gone {
		return
	}
	c.emit(CloseStream{Err: err})
	if err == nil {
		err = errors.New("the session was closed")
	}
	c.lose(err)
}

func (c *Core) lose(err error) {
	if c.gone {
		return
	}
	c.gone = true
	for _, t := range c.sorted() {
		c.step(t, onLost, input{err: err})
	}
	c.ring, c.renewals = nil, nil
	for i := range c.stripes {
		c.stripes[i].control = nil
		c.deadlines.Clear(timer{what: writerTimer, stripe: i})
		c.deadlines.Clear(timer{what: creditTimer, stripe: i})
	}
	c.deadlines.Clear(timer{what: idleTimer})
}

// forget removes a transfer from the tables, as its last step.
func (c *Core) forget(t *transfer) {
	c.tellEnd(t, input{})
	t.state = over
	delete(c.transfers, t.id())
	c.deadlines.Clear(timer{transfer: t.id()})
	if len(c.transfers) == 0 && !c.gone {
		c.patience = c.cfg.AnswerTimeout
		c.deadlines.Set(timer{what: idleTimer}, c.now.Add(c.cfg.IdleTimeout))
	}
}

// awaitAnswer restarts the receiver's time to answer.
func (c *Core) awaitAnswer(t *transfer) {
	c.deadlines.Set(timer{transfer: t.id()}, c.now.Add(c.patience))
}

// sorted returns the transfers by id, so that an event's actions come in a reproducible
// order.
func (c *Core) sorted() []*transfer {
	return slices.SortedFunc(maps.Values(c.transfers), func(a, b *transfer) int { return cmp.Compare(a.id(), b.id()) })
}
