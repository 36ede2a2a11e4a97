package offload

import (
	"time"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// Store is one incarnation of a block store.
type Store struct {
	// ID is its worker id.
	ID string
	// Epoch is its incarnation epoch. Any other incarnation refuses.
	Epoch uint64
	// Addresses are for the driver, the best first.
	Addresses []string
	// LayoutDigest is of the blocks that it holds; 0: it holds none, or that is not known.
	LayoutDigest uint64
}

// Prefix is whole blocks of tokens from the first one on. Prefixes are shared only under equal
// salts.
type Prefix struct {
	Salt   string
	Tokens []int32
}

// Outcome is how a put or a fetch ended at a store.
type Outcome struct {
	// Err is nil if it went well.
	Err error
	// Result names the end for metrics.
	Result string
	// State is what it says of the store, and Pause for how long one that is Busy wants to be left
	// alone.
	State StoreState
	Pause time.Duration
	// Again, of a put, is when the same offer may be worth another try; 0: it is not.
	Again time.Duration
}

// StoreState is what the end of a put or fetch says of the store.
type StoreState int

// States of stores.
const (
	// Healthy: it answered, and what failed is about these blocks.
	Healthy StoreState = iota
	// Busy: it asks to be left alone for a while.
	Busy
	// Failing: it is broken, or cannot be reached.
	Failing
)

// Event is what happens: one of the types below.
type Event interface{ event() }

type (
	// Wanted asks for what a store may have of a prompt. Answer follows, unless Left comes
	// first. Each Wanted that was answered has one Left.
	Wanted struct {
		ID scheduler.SequenceID // of the prompt
		// Fetch is a fresh id, for the fetch if there has to be one.
		Fetch scheduler.SequenceID
		// Store is where Prefix may be, which is of a prompt of PromptTokens.
		Store        Store
		Prefix       Prefix
		PromptTokens int
		// Hashes are those of the blocks of Prefix, of which Cached are here.
		Hashes []kvcache.Hash
		Cached int
		// Model is the engine's step time.
		Model latency.Model
	}
	// Left says that a prompt has no use for what was fetched any more: it was handed to the
	// scheduler, or its request is over.
	Left struct{ ID scheduler.SequenceID }
	// Restored answers Restore: the blocks are reserved, the first CachedTokens are here.
	Restored struct {
		Fetch        scheduler.SequenceID
		Blocks       []kvcache.BlockID
		CachedTokens int
	}
	// NotRestored answers Restore: there is no room, or the worker takes nothing new.
	NotRestored struct {
		Fetch    scheduler.SequenceID
		Draining bool
	}
	// FetchEnded answers StartFetch, whatever came of it: nothing is written any more.
	FetchEnded struct {
		Fetch   scheduler.SequenceID
		Bytes   uint64
		Outcome Outcome
	}

	// Known says which stores there are.
	Known struct{ Stores []Store }
	// Save offers a prefix that is near its eviction. Saved answers it.
	Save struct {
		ID scheduler.SaveID
		// First is the hash of its first block.
		First kvcache.Hash
	}
	// StopSave asks for an early end of that.
	StopSave struct{ ID scheduler.SaveID }
	// PutEnded answers StartPut: no block is read any more.
	PutEnded struct {
		ID      scheduler.SaveID
		Bytes   uint64
		Outcome Outcome
	}

	// Close ends everything soon and lets nothing begin.
	Close struct{}
	// Tick is the passing of time; due at Next.
	Tick struct{}
)

func (Wanted) event()      {}
func (Left) event()        {}
func (Restored) event()    {}
func (NotRestored) event() {}
func (FetchEnded) event()  {}
func (Known) event()       {}
func (Save) event()        {}
func (StopSave) event()    {}
func (PutEnded) event()    {}
func (Close) event()       {}
func (Tick) event()        {}

// Action is what is to be done: one of the types below.
type Action interface{ action() }

type (
	// Answer ends the wait of a prompt: it goes on with what is here now.
	Answer struct {
		ID scheduler.SequenceID
		// Tried: a store was asked, or another prompt's fetch waited for.
		Tried bool
		// Verdict is about the store, where this prompt was the first to ask.
		Verdict workerv1.FetchVerdict
		// From and Until are the tokens that were here before and are after it.
		From, Until int
		Took        time.Duration
		Bytes       uint64 // where this prompt was the first to ask
		Err         error
	}
	// Restore asks the scheduler to reserve blocks for a prefix, at once or not at all.
	// Restored or NotRestored answers it.
	Restore struct {
		Fetch  scheduler.SequenceID
		Prefix Prefix
		Hashes []kvcache.Hash // those of Wanted
		Spare  int
	}
	// StartFetch asks a store for the blocks of a prefix, but for the first Held.
	// FetchEnded answers it.
	StartFetch struct {
		Fetch  scheduler.SequenceID
		Store  Store
		Prefix Prefix
		Blocks []kvcache.BlockID
		Held   int
	}
	// StopFetch asks for the early end of a fetch. FetchEnded comes all the same.
	StopFetch struct{ Fetch scheduler.SequenceID }
	// Publish tells the scheduler that what a fetch brought is in its blocks.
	Publish struct {
		Fetch scheduler.SequenceID
		From  string
		// Blocks and Bytes came in Took.
		Blocks int
		Bytes  uint64
		Took   time.Duration
	}
	// Release tells the scheduler that nothing writes a fetch's blocks, and nobody needs them.
	Release struct{ Fetch scheduler.SequenceID }

	// Limit tells the scheduler how many prefixes may be saved at a time. Anew: a store is gone
	// that had some.
	Limit struct {
		Saves int
		Anew  bool
	}
	// StartPut puts a prefix into a store. PutEnded answers it.
	StartPut struct {
		ID    scheduler.SaveID
		Store Store
	}
	// StopPut asks for the early end of a put. PutEnded comes all the same.
	StopPut struct{ ID scheduler.SaveID }
	// Saved answers Save.
	Saved struct {
		ID               scheduler.SaveID
		Saved, NotFinite bool
	}

	// CountFetch and CountPut are for metrics: what came of a Wanted, and of a Save.
	CountFetch struct{ Result string }
	// CountPut is as CountFetch.
	CountPut struct {
		Result string
		Bytes  uint64
	}
)

func (Answer) action()     {}
func (Restore) action()    {}
func (StartFetch) action() {}
func (StopFetch) action()  {}
func (Publish) action()    {}
func (Release) action()    {}
func (Limit) action()      {}
func (StartPut) action()   {}
func (StopPut) action()    {}
func (Saved) action()      {}
func (CountFetch) action() {}
func (CountPut) action()   {}

// Results of fetches and puts, for metrics.
const (
	FetchOK         = "fetched"
	FetchJoined     = "joined"
	FetchDeclined   = "declined"
	FetchBackingOff = "backing_off"
	FetchNoBlocks   = "no_blocks"
	FetchDraining   = "draining"
	FetchSlow       = "slow"
	FetchAbandoned  = "abandoned"
	FetchMissing    = "missing"
	FetchBusy       = "busy"
	FetchNotFinite  = "not_finite"
	FetchFailed     = "failed"

	PutOK        = "put"
	PutHeld      = "held"
	PutArriving  = "arriving"
	PutBusy      = "busy"
	PutRefused   = "refused"
	PutFailed    = "failed"
	PutNoStore   = "no_store"
	PutStopped   = "stopped"
	PutNotFinite = "not_finite"
	PutLate      = "timeout"
)
