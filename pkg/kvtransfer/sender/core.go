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

// Config is what a core has to know. All of it is set, but where it says so.
type Config struct {
	// LayoutDigest, Layers and SliceBytes describe the pages.
	LayoutDigest       uint64
	Layers, SliceBytes int
	// CreditBytes are the receiver's, from its ReceiverHellos, one for each stream of the
	// session, and a chunk at least. MaxChunkBytes is its too, a slice at least.
	CreditBytes   []int
	MaxChunkBytes int
	// AnswerTimeout is how long the receiver may keep this side waiting, or the lease
	// of a transfer of the session where that is shorter.
	AnswerTimeout time.Duration
	// IdleTimeout is how long a session without transfers is kept.
	IdleTimeout time.Duration
	// Observe, if set, is told of every step of the table.
	Observe func(Transition)
}

// Core is the state machine of one session whose streams all had a ReceiverHello. It
// is not safe for concurrent use.
type Core struct {
	cfg       Config
	table     [states][kinds]cell
	transfers map[uint64]*transfer
	deadlines *deadline.Queue[timer]
	patience  time.Duration // for the receiver: the shortest of AnswerTimeout and the leases
	stripes   []stripe
	ring      []*transfer // those with slices to send, each once, next first
	favour    int         // bytes that the shortest may have before the next in turn
	renewals  []*transfer // those that the next Renew names
	segments  segments
	chunks    []*WriteChunk // to be used again
	closing   bool
	gone      bool

	now time.Time
	out []Action
}

// stripe is one stream of the session, as its writer sees it.
type stripe struct {
	credit, most int
	granted      int    // bytes, since the credit timer was set
	control      []note // what goes before any chunk
	asleep       bool   // the writer got nothing and waits for Wake
	wake         Action
}

// timer names a deadline: that of a transfer, of a stripe, or of the session.
type timer struct {
	what     timerKind
	transfer uint64
	stripe   int
}

type timerKind int

const (
	transferTimer timerKind = iota // an answer, or the next Renew
	writerTimer                    // the stream takes what was given to it
	creditTimer                    // a chunk's worth is granted
	idleTimer                      // there is something to do
)

// transfer is one transfer until nothing of it is awaited.
type transfer struct {
	ticket      *kvtransferv1.Ticket
	encoding    kvtransferv1.Encoding
	sliceBytes  int // of one slice in a payload
	lease       time.Duration
	requestID   string
	traceParent string
	state       state

	lanes      []lane // by stripe
	commits    int    // lanes over which Commit was sent
	aborts     int    // lanes over which Abort was sent
	answered   bool   // Accept or Refuse was read
	accepted   bool
	offered    *coverage.Set
	backlog    backlog
	unsent     int // slices that were not given to a writer
	inRing     bool
	renewing   bool // it is among the renewals
	committing bool // Commit was asked for
	queued     bool // Commit is in every stripe's queue, or was
	sampled    []uint32
	abort      kvtransferv1.AbortReason
	reading    int    // chunks whose pages are being read
	result     Result // decided once End is not zero
	released   bool   // Released was said
	told       bool   // Ended was said
}

// lane is what of a transfer went over one stripe.
type lane struct {
	sequence  uint32
	abortSent bool
}

func (t *transfer) id() uint64 { return t.ticket.GetTransferId() }

// New is a core without transfers, to be used from now on.
func New(cfg Config, now time.Time) *Core {
	c := &Core{
		cfg:       cfg,
		table:     table(),
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

// Handle takes one event and gives what has to be done for it, in order. now
// does not go back from call to call. The actions are valid until the next call.
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

// HandleOffer is Handle for what comes with every layer, and allocates nothing in
// the long run.
func (c *Core) HandleOffer(now time.Time, ev Offer) []Action {
	c.begin(now)
	c.to(ev.ID, onOffer, input{offer: ev})
	return c.end()
}

// HandleWriterReady is Handle for what comes with every chunk, and allocates
// nothing for one in the long run.
func (c *Core) HandleWriterReady(now time.Time, ev WriterReady) []Action {
	c.begin(now)
	c.next(ev.Stripe)
	return c.end()
}

// HandlePagesRead is Handle for what comes with every chunk, and allocates nothing.
func (c *Core) HandlePagesRead(now time.Time, ev PagesRead) []Action {
	c.begin(now)
	c.pagesRead(ev)
	return c.end()
}

func (c *Core) begin(now time.Time) { c.now, c.out = now, c.out[:0] }

func (c *Core) end() []Action {
	if c.closing && !c.gone && len(c.transfers) == 0 {
		c.closeStream(nil)
	}
	if !c.gone {
		c.wake()
	}
	return c.out
}

// Next is when the core wants a Tick; ok is false if it waits for nothing.
func (c *Core) Next() (at time.Time, ok bool) { return c.deadlines.Next() }

// Lost says that the session has ended, or that CloseStream asked for its end.
func (c *Core) Lost() bool { return c.gone }

// Transfers is the number of transfers that are not forgotten.
func (c *Core) Transfers() int { return len(c.transfers) }

// Credit is the payload, in bytes, that may be sent over a stripe without a Grant.
func (c *Core) Credit(stripe int) int { return c.stripes[stripe].credit }

func (c *Core) emit(a Action) { c.out = append(c.out, a) }

// to gives an event to a transfer that may be over.
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

// closeStream ends the session and all that is in it.
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

// forget takes a transfer out of the tables, as the last step of its life.
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

// awaitAnswer gives the receiver its time from now on.
func (c *Core) awaitAnswer(t *transfer) {
	c.deadlines.Set(timer{transfer: t.id()}, c.now.Add(c.patience))
}

// sorted are the transfers by id: the actions of one event have one order, so
// that a simulation can be run again.
func (c *Core) sorted() []*transfer {
	return slices.SortedFunc(maps.Values(c.transfers), func(a, b *transfer) int { return cmp.Compare(a.id(), b.id()) })
}
