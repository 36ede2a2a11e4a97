package sender

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/coverage"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/deadline"
)

// Config is what a core has to know. All of it is set.
type Config struct {
	// LayoutDigest, Layers and SliceBytes describe the pages.
	LayoutDigest       uint64
	Layers, SliceBytes int
	// CreditBytes and MaxChunkBytes are the receiver's, from its greeting;
	// MaxChunkBytes is a slice at least, and CreditBytes a chunk.
	CreditBytes, MaxChunkBytes int
	// AnswerTimeout is how long the receiver may keep this side waiting.
	AnswerTimeout time.Duration
	// IdleTimeout is how long a stream without transfers is kept.
	IdleTimeout time.Duration
}

// Core is the state machine of one greeted stream. It is not safe for concurrent
// use.
type Core struct {
	cfg       Config
	table     [states][kinds]step
	transfers map[uint64]*transfer
	deadlines *deadline.Queue[timer]
	credit    int
	control   []note      // what goes before any chunk
	ring      []*transfer // those with slices to send, each once, next first
	renewals  []*transfer // those that the next Renew names
	sending   int         // bytes of the chunk whose pages are being read
	asleep    bool        // the writer got nothing and waits for Wake
	poke      bool        // there may be something for it now
	closing   bool
	gone      bool

	now time.Time
	out []Action
}

// note is a message that is built when its turn comes, if it still holds then.
type note struct {
	what noteKind
	of   *transfer
}

type noteKind int

const (
	noteOpen noteKind = iota
	noteCommit
	noteAbort
	noteRenew
)

// timer names a deadline: that of a transfer, or one of the stream's.
type timer struct {
	what     timerKind
	transfer uint64
}

type timerKind int

const (
	transferTimer timerKind = iota // an answer, or the next Renew
	writerTimer                    // the stream takes what was given to it
	creditTimer                    // a Grant comes
	idleTimer                      // there is something to do
)

// transfer is one transfer until nothing of it is awaited.
type transfer struct {
	ticket      *kvtransferv1.Ticket
	renewing    bool // it is among the renewals
	lease       time.Duration
	requestID   string
	traceParent string
	state       state

	offered    *coverage.Set
	backlog    backlog
	inRing     bool
	sequence   uint32
	committing bool // Commit was asked for
	commitSent bool
	abortSent  bool
	sampled    []uint32
	abort      kvtransferv1.AbortReason
	reading    bool   // its pages are being read
	result     Result // decided once End is not zero
	settled    bool   // Ended was said
}

func (t *transfer) id() uint64 { return t.ticket.GetTransferId() }

// New is a core without transfers, to be used from now on.
func New(cfg Config, now time.Time) *Core {
	c := &Core{
		cfg:       cfg,
		table:     table(),
		transfers: map[uint64]*transfer{},
		deadlines: deadline.New[timer](),
		credit:    cfg.CreditBytes,
	}
	c.deadlines.Set(timer{what: idleTimer}, now.Add(cfg.IdleTimeout))
	return c
}

// Handle takes one event and gives what has to be done for it, in order. now
// does not go back from call to call.
func (c *Core) Handle(now time.Time, ev Event) []Action {
	c.now, c.out, c.poke = now, nil, false
	switch ev := ev.(type) {
	case Open:
		c.begin(ev)
	case Offer:
		c.to(ev.ID, onOffer, input{offer: ev})
	case Commit:
		c.to(ev.ID, onCommit, input{commit: ev})
	case Abort:
		c.to(ev.ID, onAbort, input{abort: ev.Reason})
	case Received:
		if !c.gone {
			c.receive(ev.Message)
		}
	case WriterReady:
		c.deadlines.Clear(timer{what: writerTimer})
		if !c.gone {
			c.next()
		}
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
	if c.closing && !c.gone && len(c.transfers) == 0 {
		c.closeStream(nil)
	}
	if c.poke && c.asleep && !c.gone {
		c.asleep = false
		c.emit(Wake{})
	}
	out := c.out
	c.out = nil
	return out
}

// Next is when the core wants a Tick; ok is false if it waits for nothing.
func (c *Core) Next() (at time.Time, ok bool) { return c.deadlines.Next() }

// Lost says that the stream has ended, or that CloseStream asked for its end.
func (c *Core) Lost() bool { return c.gone }

// Transfers is the number of transfers that are not forgotten.
func (c *Core) Transfers() int { return len(c.transfers) }

// Credit is the payload, in bytes, that may be sent without a Grant.
func (c *Core) Credit() int { return c.credit }

func (c *Core) emit(a Action) { c.out = append(c.out, a) }

func (c *Core) step(t *transfer, k kind, in input) { c.table[t.state][k](c, t, in) }

// to gives an event to a transfer that may be over.
func (c *Core) to(id uint64, k kind, in input) {
	if t := c.transfers[id]; t != nil {
		c.step(t, k, in)
	}
}

func (c *Core) begin(ev Open) {
	id := ev.Ticket.GetTransferId()
	if c.gone || c.closing {
		c.emit(Ended{ID: id, Result: Result{End: EndBroken, Err: errors.New("the stream is closing")}})
		return
	}
	if c.transfers[id] != nil {
		c.emit(Ended{ID: id, Result: Result{
			End: EndRefused, Refuse: kvtransferv1.RefuseReason_REFUSE_REASON_ALREADY_OPEN, Detail: "a ticket serves once"}})
		return
	}
	blocks, held := int(ev.Ticket.GetBlocks()), int(ev.Ticket.GetHeldBlocks())
	t := &transfer{
		ticket:      ev.Ticket,
		lease:       ev.Lease,
		requestID:   ev.RequestID,
		traceParent: ev.TraceParent,
		offered:     coverage.New(c.cfg.Layers, max(blocks-held, 0)),
	}
	c.transfers[id] = t
	c.deadlines.Clear(timer{what: idleTimer})
	c.note(noteOpen, t)
}

func (c *Core) pagesRead(ev PagesRead) {
	t := c.transfers[ev.ID]
	if t == nil || !t.reading {
		return
	}
	t.reading = false
	if ev.Err != nil {
		c.credit += c.sending
		c.step(t, onUnreadable, input{err: ev.Err})
		return
	}
	c.step(t, onRead, input{})
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
			c.closeStream(fmt.Errorf("the receiver took nothing for %s", c.cfg.AnswerTimeout))
		case creditTimer:
			c.closeStream(fmt.Errorf("the receiver granted nothing for %s", c.cfg.AnswerTimeout))
		case idleTimer:
			c.closeStream(nil)
		}
	}
}

// closeStream ends the stream and all that is on it.
func (c *Core) closeStream(err error) {
	if c.gone {
		return
	}
	c.emit(CloseStream{Err: err})
	if err == nil {
		err = errors.New("the stream was closed")
	}
	c.lose(err)
}

func (c *Core) lose(err error) {
	if c.gone {
		return
	}
	c.gone = true
	c.control, c.ring, c.renewals = nil, nil, nil
	for _, t := range c.sorted() {
		c.step(t, onLost, input{err: err})
	}
	for _, what := range []timerKind{writerTimer, creditTimer, idleTimer} {
		c.deadlines.Clear(timer{what: what})
	}
}

// forget takes a transfer out of the tables, as the last step of its life.
func (c *Core) forget(t *transfer, _ input) {
	c.settle(t, input{})
	delete(c.transfers, t.id())
	c.deadlines.Clear(timer{transfer: t.id()})
	if len(c.transfers) == 0 && !c.gone {
		c.deadlines.Set(timer{what: idleTimer}, c.now.Add(c.cfg.IdleTimeout))
	}
}

// note queues a message of a transfer, or Renew.
func (c *Core) note(what noteKind, t *transfer) {
	c.control = append(c.control, note{what: what, of: t})
	c.poke = true
}

// awaitAnswer gives the receiver its time from now on.
func (c *Core) awaitAnswer(t *transfer) {
	c.deadlines.Set(timer{transfer: t.id()}, c.now.Add(c.cfg.AnswerTimeout))
}

// sorted are the transfers by id: the actions of one event have one order, so
// that a simulation can be run again.
func (c *Core) sorted() []*transfer {
	all := make([]*transfer, 0, len(c.transfers))
	for _, t := range c.transfers {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *transfer) int { return cmp.Compare(a.id(), b.id()) })
	return all
}
