// Package offload decides which prefixes a prefill worker puts into block stores before it
// evicts them, and which it fetches from there instead of computing them.
//
// Core is a state machine: Handle takes an event and answers with actions. It has no
// goroutine, clock or lock, and does no I/O. services/prefill drives it, and simulate.
package offload

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// Config of a Core.
type Config struct {
	// PageBytes and BlockTokens are of one block, and LayoutDigest names its layout.
	PageBytes, BlockTokens int
	LayoutDigest           uint64
	// ChunkTokens is the most prompt tokens of one step.
	ChunkTokens int
	// AssumedBandwidth is how fast a store is believed to be before it was measured, bytes a
	// second; 0: nothing is fetched.
	AssumedBandwidth float64
	// Puts is the most puts at a time.
	Puts int
}

// A Config whose flags nobody changed.
const (
	DefaultPuts      = 2
	DefaultBandwidth = 1_000_000_000
)

// Causes of the end of a fetch that nobody waits for any more.
var (
	ErrAbandoned = errors.New("the request is over")
	errTooSlow   = errors.New("computing is quicker than the store")
	errClosing   = errors.New("the worker stops")
)

// FetchLease is how long a store may be silent that sends blocks: short, since nobody waits
// for them that long and they are lacking meanwhile.
const FetchLease = 3 * time.Second

// PutTimeout bounds one put: its blocks cannot be evicted meanwhile.
const PutTimeout = 10 * time.Second

// Core is the state machine. It is not safe for concurrent use.
type Core struct {
	config Config
	speeds *speeds
	closed bool

	waiting []*user // for fetches, in the order of Wanted
	using   map[scheduler.SequenceID]*user
	fetches map[scheduler.SequenceID]*fetch // until FetchEnded
	joining map[asked]*fetch                // those that can be joined

	stores  []Store
	has     map[string]Store // the stores that have blocks of this worker, by id, as they were last heard of
	lost    bool             // one of them is gone, and Limit has not said so
	puts    []*put
	limited int

	now time.Time
	out []Action
}

// asked is what a fetch is joined for: the first block that was lacking, of one
// incarnation of a store.
type asked struct {
	first kvcache.Hash
	store string
	epoch uint64
}

// fetch is one fetch, for all prompts that wait for it.
type fetch struct {
	id      scheduler.SequenceID
	asked   asked
	store   Store
	prefix  Prefix
	hashes  []kvcache.Hash // of its blocks
	blocks  int            // that it brings
	wanted  uint64         // bytes
	began   time.Time
	least   int   // blocks that Restore leaves to others at least; 0: it was tried
	cause   error // why it was stopped; nil: it was not
	users   int
	over    bool // FetchEnded came
	landed  bool // and what it brought is here
	bytes   uint64
	outcome Outcome
}

// user is one prompt that waits for a fetch, or holds what it brought.
type user struct {
	wanted Wanted
	fetch  *fetch
	joined bool
	began  time.Time
	until  int       // blocks of the prompt that the fetch brings
	due    time.Time // when computing would have been quicker
}

// put is one prefix that is being put.
type put struct {
	id      scheduler.SaveID
	store   Store
	began   time.Time
	again   time.Time // when it is tried once more; zero: it is at the store
	retried bool
	stopped bool
}

// New makes a core that knows no store.
func New(config Config) *Core {
	return &Core{
		config: config, speeds: newSpeeds(config.AssumedBandwidth), using: make(map[scheduler.SequenceID]*user),
		fetches: make(map[scheduler.SequenceID]*fetch), joining: make(map[asked]*fetch),
		has: make(map[string]Store),
	}
}

// Handle takes one event and gives what has to be done for it, in order. now does not go
// back. The actions are valid until the next call.
func (c *Core) Handle(now time.Time, event Event) []Action {
	c.now, c.out = now, c.out[:0]
	switch e := event.(type) {
	case Wanted:
		c.wanted(e)
	case Left:
		c.left(e.ID)
	case Restored:
		c.restored(e)
	case NotRestored:
		c.notRestored(e)
	case FetchEnded:
		c.fetchEnded(e)
	case Known:
		c.known(e.Stores)
	case Save:
		c.save(e)
	case StopSave:
		c.stopSave(e.ID)
	case PutEnded:
		c.putEnded(e)
	case Close:
		c.close()
	case Tick:
		c.tick()
	}
	c.limit()
	// What ended before the limit is told after it: the scheduler may offer it again.
	slices.SortStableFunc(c.out, func(a, b Action) int { return cmp.Compare(late(a), late(b)) })
	return c.out
}

func late(a Action) int {
	if _, is := a.(Saved); is {
		return 1
	}
	return 0
}

func (c *Core) act(a Action) { c.out = append(c.out, a) }

// Next is when a Tick is due; ok is false if the core waits for nothing.
func (c *Core) Next() (at time.Time, ok bool) {
	earlier := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	for _, u := range c.waiting {
		earlier(u.due)
	}
	for _, p := range c.puts {
		earlier(p.again)
	}
	if !c.closed {
		for _, s := range c.stores {
			if until := c.speeds.avoidedUntil(s.ID, putting); until.After(c.now) {
				earlier(until)
			}
		}
	}
	return at, !at.IsZero()
}

// Fetches is how many fetches run.
func (c *Core) Fetches() int { return len(c.fetches) }

// Idle says that nothing is fetched or put.
func (c *Core) Idle() bool { return len(c.fetches) == 0 && len(c.puts) == 0 }

func (c *Core) tick() {
	for _, u := range slices.Clone(c.waiting) {
		if !c.now.Before(u.due) {
			c.giveUp(u, errTooSlow)
		}
	}
	for _, p := range c.puts {
		if !p.again.IsZero() && !c.now.Before(p.again) {
			p.again = time.Time{}
			c.act(StartPut{ID: p.id, Store: p.store})
		}
	}
}

func (c *Core) close() {
	c.closed = true
	for _, f := range c.sorted() {
		c.stop(f, errClosing)
	}
	for _, p := range slices.Clone(c.puts) {
		c.stopSave(p.id)
	}
}

func (c *Core) sorted() []*fetch {
	return slices.SortedFunc(maps.Values(c.fetches), func(a, b *fetch) int { return cmp.Compare(a.id, b.id) })
}
