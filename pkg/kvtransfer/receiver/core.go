package receiver

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/coverage"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/deadline"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// Config configures a core. Fields not marked optional are required.
type Config struct {
	// WorkerID and Epoch identify this receiver.
	WorkerID string
	Epoch    uint64
	// LayoutDigest, Layers and SliceBytes describe the pages.
	LayoutDigest       uint64
	Layers, SliceBytes int
	// Encoding is the encoding that tickets ask for, EncodedBytes its bytes per slice.
	// Optional: zero allows native only. Native is always allowed.
	Encoding     kvtransferv1.Encoding
	EncodedBytes int
	// Lends lets tickets name a memory, so that senders in it may lend slices.
	Lends bool
	// Shares lets senders map the pages, and write slices there themselves.
	Shares bool
	// Lease is how long a sender may be silent.
	Lease time.Duration
	// MaxIdle is how long a sender may only renew a transfer, without bytes of it. 0: no
	// bound.
	MaxIdle time.Duration
	// HolderBlocks bounds the blocks that one holder's reservations have. One reservation is
	// always allowed. 0: no bound.
	HolderBlocks int
	// CreditBytes is the payload that may be in flight on one stream.
	CreditBytes int
	// MaxChunkBytes is the largest payload of one chunk.
	MaxChunkBytes int
	// MaxReservations and MaxStreams bound the tables.
	MaxReservations, MaxStreams int
	// Observe, if set, is called with every transition.
	Observe func(Transition)
}

// Core is the state machine. It is not safe for concurrent use.
type Core struct {
	cfg       Config
	table     cells
	transfers map[uint64]*transfer
	holders   map[string]int // charged blocks; none that is 0
	streams   map[StreamID]*stream
	sessions  map[uint64]*session   // by id, if not 0
	mappings  map[StreamID]*session // that have the pages mapped, by the stream of Map
	deadlines *deadline.Queue[timer]
	closed    bool
	totals    Totals

	now time.Time
	out []Action
}

// timer identifies a deadline: a transfer's, or that of a stream waiting for its session to
// be complete.
type timer struct {
	transfer uint64
	stream   StreamID
}

// transfer is a reservation, kept until nothing of it can be written.
type transfer struct {
	id, secret uint64
	sender     string // empty: anybody
	holders    []string
	charge     int
	blocks     []kvcache.BlockID
	held       int
	state      state

	session    *session // nil before Open, and once the session is gone
	lanes      []lane   // by stripe
	commits    int      // lanes with Commit
	aborts     int      // lanes with Abort
	encoding   kvtransferv1.Encoding
	sliceBytes int // bytes of one slice in a payload
	seen       *coverage.Set
	moved      time.Time // when bytes last came, from Accept on
	writing    int
	withdrawn  bool // the sender recalled slices, so it cannot commit
	bytes      uint64
	sampled    []int32
}

// lane is the part of a transfer on one stripe.
type lane struct {
	sequence           uint32
	committed, aborted bool
}

func (t *transfer) lane(in input) *lane { return &t.lanes[in.stream.stripe] }

// New returns a core without reservations and streams.
func New(cfg Config) *Core {
	return &Core{
		cfg:       cfg,
		table:     shared,
		transfers: map[uint64]*transfer{},
		holders:   map[string]int{},
		streams:   map[StreamID]*stream{},
		sessions:  map[uint64]*session{},
		mappings:  map[StreamID]*session{},
		deadlines: deadline.New[timer](),
	}
}

// Handle processes one event and returns the actions for it, in order. now must not go
// backwards. The actions are valid until the next call.
func (c *Core) Handle(now time.Time, ev Event) []Action {
	c.begin(now)
	switch ev := ev.(type) {
	case Reserve:
		c.reserve(ev)
	case Cancel:
		if t := c.transfers[ev.ID]; t != nil {
			c.step(t, onCancel, input{})
		}
	case StreamOpened:
		c.openStream(ev)
	case Received:
		c.received(ev)
	case Written:
		c.written(ev)
	case StreamClosed:
		c.loseStream(ev.Stream)
	case Map:
		c.mapPages(ev)
	case Unmapped:
		c.unmap(ev.Stream)
	case Tick:
		c.tick()
	case Shutdown:
		c.shutdown()
	case CloseStreams:
		for _, s := range c.sortedStreams() {
			c.closeStream(s, Closing, "the receiver shuts down")
		}
	}
	return c.end()
}

// HandleReceived is Handle for Received. It does not allocate for a chunk.
func (c *Core) HandleReceived(now time.Time, ev Received) []Action {
	c.begin(now)
	c.received(ev)
	return c.end()
}

// HandleWritten is Handle for Written. It does not allocate.
func (c *Core) HandleWritten(now time.Time, ev Written) []Action {
	c.begin(now)
	c.written(ev)
	return c.end()
}

func (c *Core) begin(now time.Time) { c.now, c.out = now, c.out[:0] }

func (c *Core) end() []Action {
	c.closeUnused()
	return c.out
}

// Next returns when the core wants a Tick; ok is false if it has no deadline.
func (c *Core) Next() (at time.Time, ok bool) { return c.deadlines.Next() }

// Idle reports that there are no reservations and no streams.
func (c *Core) Idle() bool { return len(c.transfers) == 0 && len(c.streams) == 0 }

func (c *Core) emit(a Action) { c.out = append(c.out, a) }

func (c *Core) received(ev Received) {
	if s := c.streams[ev.Stream]; s != nil && s.phase != closing {
		c.receive(s, ev)
	}
}

func (c *Core) reserve(ev Reserve) {
	if c.closed || len(c.transfers) >= c.cfg.MaxReservations {
		c.emit(Rejected{Closed: c.closed})
		return
	}
	for _, holder := range ev.Holders {
		if has := c.holders[holder]; c.cfg.HolderBlocks > 0 && has > 0 && has+ev.Charge > c.cfg.HolderBlocks {
			c.emit(Rejected{Holder: holder})
			return
		}
	}
	t := &transfer{
		id: ev.ID, secret: ev.Secret, blocks: ev.Blocks, held: ev.Held,
		sender: ev.Sender, holders: ev.Holders, charge: ev.Charge,
	}
	for _, holder := range t.holders {
		c.holders[holder] += t.charge
	}
	c.transfers[t.id] = t
	c.lease(t)
}

func (c *Core) tick() {
	for {
		due, ok := c.deadlines.Pop(c.now)
		if !ok {
			return
		}
		if t := c.transfers[due.transfer]; t != nil && due.stream == 0 {
			c.step(t, onDeadline, input{})
		}
		if s := c.streams[due.stream]; s != nil && due.stream != 0 {
			c.closeStream(s, Silence, "not all streams of its session sent SenderHello within the lease")
		}
	}
}

func (c *Core) shutdown() {
	c.closed = true
	for _, t := range byID(c.transfers) {
		c.step(t, onShutdown, input{
			reason: kvtransferv1.FailReason_FAIL_REASON_SHUTDOWN,
			detail: "the receiver shuts down",
		})
	}
}

// lease restarts the transfer's lease.
func (c *Core) lease(t *transfer) {
	c.deadlines.Set(timer{transfer: t.id}, c.now.Add(c.cfg.Lease))
}

// forget removes a transfer from the tables.
func (c *Core) forget(t *transfer) {
	t.state = gone
	delete(c.transfers, t.id)
	for _, holder := range t.holders {
		if c.holders[holder] -= t.charge; c.holders[holder] <= 0 {
			delete(c.holders, holder)
		}
	}
	c.deadlines.Clear(timer{transfer: t.id})
	if t.session != nil {
		delete(t.session.transfers, t.id)
	}
}

// byID sorts transfers, so that an event's actions come in a reproducible order.
func byID(m map[uint64]*transfer) []*transfer {
	return slices.SortedFunc(maps.Values(m), func(a, b *transfer) int { return cmp.Compare(a.id, b.id) })
}

func (c *Core) sortedStreams() []*stream {
	return slices.SortedFunc(maps.Values(c.streams), func(a, b *stream) int { return cmp.Compare(a.id, b.id) })
}
