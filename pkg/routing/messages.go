package routing

import (
	"time"

	"google.golang.org/grpc/codes"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// Ref is one incarnation of a worker. A worker that started again has another
// epoch and is another worker.
type Ref struct {
	ID    string
	Epoch uint64
}

// Request is what routing has to know of a request.
type Request struct {
	ID       string           // the same over all its attempts and no other's
	Attempt  int              // 0 at first, more each time it was started again
	Retry    bool             // a worker failed in the attempt before
	Tenant   string           // that it counts for
	Model    string           // one of Config.Models, by name
	Mode     inferencev1.Mode // that was asked for
	Priority int32            // higher first
	Arrived  time.Time        // of the request, not of this attempt
	Deadline time.Time        // of the whole request; zero: none
	Tokens   int              // to compute before the first one is sampled
	MaxNew   int              // tokens that it may generate
	// TTFT and TPOT are its objective; 0 is none. If both are, that of its Class counts, and of
	// Config.DefaultClass if that is empty.
	TTFT, TPOT time.Duration
	Class      string
	// Hashes is the chained hashes of the whole blocks of its tokens, for each of
	// Router.BlockKeys when it arrives. Hash makes them for keys that came later; nil: of
	// those nothing is known.
	Hashes map[BlockKey][]kvcache.Hash
	Hash   func(BlockKey) []kvcache.Hash
	// Holder is a worker that has the KV of all those blocks by now, whether or not its events
	// have said so; zero: none is known. Another request with the same prompt ran there.
	Holder   Ref
	Failures []Failure // of workers in this request
	Version  Version   // of its first Dispatch, with which it stays; zero: there was none yet
}

// SetHashes sets Hashes for some keys, and Hash, by the tokens of the request and its salt.
func (r *Request) SetHashes(keys []BlockKey, salt string, tokens []int32) {
	r.Hash = func(key BlockKey) []kvcache.Hash {
		return kvcache.PromptHashes(key.Version.Digest, key.Version.Class, salt, tokens, key.BlockTokens)
	}
	r.Hashes = make(map[BlockKey][]kvcache.Hash)
	for _, key := range keys {
		r.Hashes[key] = r.Hash(key)
	}
}

// Failure is a worker that failed in a request.
type Failure struct {
	Worker Ref
	// Gone: its connection broke or it leaves. It is not tried again, unless it has
	// answered on another connection since; others are, if there is nothing else.
	Gone bool
	// Lost: it died, or the connection to it broke, which is not its own word. So what ran there
	// is tried again elsewhere, once, whatever the retry budget is.
	Lost       bool
	Connection uint64 // the one that broke, as Connected numbers them from 1; 0: none did
	Busy       bool   // it refused because it was full, which says nothing against it later
	Silent     bool   // it said nothing for too long
	Verdict    bool   // it says that the request is wrong: another has to say the same
	Replaced   bool   // another incarnation answers in its place, so it is dead
	Leaves     bool   // it takes nothing new any more
	Beside     bool   // another attempt of the request went on
	// Unreached is the decode worker to which no transfer from Worker could begin, for
	// Why: it speaks against the pair alone.
	Unreached  Ref
	Why        string
	RetryAfter time.Duration // when it said to come back; 0: it did not
}

// answersAgain reports whether the worker has answered on another connection since it failed,
// as the same incarnation: it was the connection that was lost.
func (f Failure) answersAgain(w *worker) bool {
	return f.Connection != 0 && !f.Replaced && !f.Leaves && w.connected && w.connection != f.Connection
}

// Event is what happens to a router: one of the types below.
type Event interface{ event() }

type (
	// ViewChanged is what etcd lists. With Live false the view is the last one
	// that was seen and nothing is concluded from absence.
	ViewChanged struct {
		Workers []*controlv1.WorkerRecord
		Live    bool
	}
	// Connected says that this incarnation of a worker answers. Record is what it says of
	// itself, which the router owns; nil: what etcd lists. No earlier connection to it had the
	// same number. If its prefix cache is known already, BlocksListed comes before.
	Connected struct {
		Worker     Ref
		Record     *controlv1.WorkerRecord
		Connection uint64
	}
	// ConnectFailed says why there is no connection to a worker, or that somebody else answers.
	ConnectFailed struct {
		Worker Ref
		Why    string
	}
	// Leaving says that a worker was told to drain; Drained: it has finished what it had.
	Leaving struct {
		Worker  Ref
		Drained bool
	}
	// Disconnected says that the connection to a worker is lost.
	Disconnected struct{ Worker Ref }
	// LoadReported is a worker's load report.
	LoadReported struct{ Report *controlv1.LoadReport }
	// RouterReported is a report of a router, maybe of this one.
	RouterReported struct{ Report *controlv1.RouterReport }
	// BlocksChanged is a worker's KV event.
	BlocksChanged struct{ Event *controlv1.KvEvent }
	// BlocksListed answers ListBlocks, or is a part of the answer, as Listed makes them: so many
	// blocks came before, and More says that others follow. Response is nil if it failed.
	BlocksListed struct {
		Worker   Ref
		Response *workerv1.ListBlocksResponse
		Came     int
		More     bool
	}
	// Arrived hands in a request or its next attempt. It is answered by exactly
	// one Dispatch or Refuse, unless Cancelled comes first.
	Arrived struct{ Request Request }
	// Hedge asks for workers of a hedged attempt beside one that runs and whose first token is late. It
	// is answered at once by a Dispatch or Refuse of Request.ID, which no other attempt has. Its Version
	// is set, and its Attempt is not 0.
	Hedge struct {
		Request Request
		// Late is the worker that is waited for, After how long.
		Late  Ref
		After time.Duration
		// Again: it was refused before, and the first token is later now.
		Again bool
	}
	// Queued says that a worker has a dispatched request, as its task of that number.
	Queued struct {
		ID   string
		Role controlv1.Role
		Task uint64
	}
	// Taken says that a worker began with a dispatched request: a decode worker has
	// reserved its blocks, or a worker has taken it from its queue.
	Taken struct {
		ID   string
		Role controlv1.Role
	}
	// Unread says that a request has ended whose client has not read its answer: it still
	// counts against its tenant's limit.
	Unread struct{ Tenant string }
	// Read ends what Unread began.
	Read struct{ Tenant string }
	// PromptDone says that the prompt of a dispatched request is computed, so that a
	// transfer of its KV has begun, if there is one.
	PromptDone struct{ ID string }
	// Sent says that the KV of a dispatched request has arrived at its decode worker, to which its
	// prefill worker sent so many bytes of pages meanwhile, and had some to send for Busy.
	Sent struct {
		ID    string
		Bytes uint64
		Busy  time.Duration
	}
	// Fetched is what a worker that asked Dispatch.Source says of it, and how many
	// tokens of the prompt it got, in what time.
	Fetched struct {
		Store, Worker Ref
		Verdict       workerv1.FetchVerdict
		Tokens        int
		Took          time.Duration
	}
	// TokensReceived says that tokens of a dispatched request came, with these gaps between
	// them. It comes now and then, not with each token.
	TokensReceived struct {
		ID   string
		Gaps Gaps
	}
	// Contradicted says that others served a request that Worker failed, by its own
	// word, in an attempt that began at Began. Why is what it said.
	Contradicted struct {
		Worker Ref
		Began  time.Time
		Why    string
	}
	// Ended ends a dispatched attempt. Unknown ones are ignored.
	Ended struct {
		ID       string
		Failures []Failure
		// Served: it ended the request, and well, with so many tokens since the Dispatch, for which
		// it was in the decode worker's batch for Decoding.
		Served   bool
		Tokens   int
		Decoding time.Duration
		// Lost: another attempt of the request had its first token before.
		Lost bool
	}
	// Cancelled takes a request out of the queue. Unknown ones are ignored.
	Cancelled struct{ ID string }
	// PolicyChanged is a new policy of the operators; nil: the configuration.
	PolicyChanged struct{ Policy *controlv1.Policy }
	// Tick is the passing of time; due at Next.
	Tick struct{}
)

func (ViewChanged) event()    {}
func (Connected) event()      {}
func (ConnectFailed) event()  {}
func (Disconnected) event()   {}
func (Leaving) event()        {}
func (LoadReported) event()   {}
func (RouterReported) event() {}
func (BlocksChanged) event()  {}
func (BlocksListed) event()   {}
func (Arrived) event()        {}
func (Hedge) event()          {}
func (Queued) event()         {}
func (Taken) event()          {}
func (Unread) event()         {}
func (Read) event()           {}
func (PromptDone) event()     {}
func (Sent) event()           {}
func (Fetched) event()        {}
func (TokensReceived) event() {}
func (Contradicted) event()   {}
func (Ended) event()          {}
func (Cancelled) event()      {}
func (PolicyChanged) event()  {}
func (Tick) event()           {}

// Action is what a router wants done: one of the types below.
type Action interface{ action() }

type (
	// Connect asks for a connection to a worker, to be kept until Forget; again where its
	// addresses have changed.
	Connect struct {
		Worker Ref
		Record *controlv1.WorkerRecord
	}
	// Forget says that a worker is not wanted any more.
	Forget struct{ Worker Ref }
	// DuplicateID says that two workers are registered under one id and that only one
	// is used. It needs an operator.
	DuplicateID struct {
		ID    string
		Roles [2]controlv1.Role
	}
	// TooManyWorkers says that etcd lists more workers than are kept track of, and how many of
	// them are left out. It is said once for as long as it lasts, and needs an operator.
	TooManyWorkers struct{ Ignored int }
	// ListBlocks asks for a worker's prefix cache.
	ListBlocks struct{ Worker Ref }
	// Dispatch sends a request to workers.
	Dispatch struct {
		ID     string
		Decode Ref
		// Prefill is the zero Ref in aggregated mode.
		Prefill Ref
		// Source is a block store that has more of the prompt than Prefill; nil: none
		// has. The receiver owns it.
		Source *workerv1.BlockSource
		// Version is that of the workers.
		Version Version
		// ContextTokens is the longest context of the workers that could serve the
		// request; 0: they do not say.
		ContextTokens int
		// DecodeSilence and PrefillSilence are how long they may be silent.
		DecodeSilence, PrefillSilence Silence
		// HedgeAfter is after how long without a first token to ask for a hedged attempt; 0: never.
		HedgeAfter time.Duration
		// Fallback: mode auto would have disaggregated, had there been a prefill
		// worker that can send to a decode worker.
		Fallback bool
		// Decision is the record of the choice; the receiver owns it.
		Decision *controlv1.Decision
	}
	// Pinned says that a model without versions in the policy is served in this one
	// from now on. Other routers are to be told.
	Pinned struct {
		Model   string
		Version Version
	}
	// Disagree says which other routers serve versions of a model that this one does
	// not, for people; none: all agree again. It needs an operator.
	Disagree struct {
		Model  string
		Served []Version
		Others []string
	}
	// Foreign says that a worker gets no requests because its version is not served, or,
	// with Excluded false, that it gets some again.
	Foreign struct {
		Worker   Ref
		Role     controlv1.Role
		Model    string
		Version  Version
		Served   []Version
		Excluded bool
	}
	// Distrusted says that a worker's load reports, or what a router reports, are not believed for
	// Wait: Why is one of the Distrust constants.
	Distrusted struct {
		Worker Ref
		Why    string
		Wait   time.Duration
	}
	// PathLost says that no transfer from a prefill to a decode worker could begin,
	// and that the pair is left alone for Wait.
	PathLost struct {
		Prefill, Decode Ref
		Why             string
		Wait            time.Duration
	}
	// Suspected says that a worker is left alone for Wait, unless it shows that it
	// goes on: for its silence, or because others serve what it fails. One that is Slow
	// gets less, and is tried after Wait.
	Suspected struct {
		Worker Ref
		Why    string
		Silent bool
		Slow   bool
		Wait   time.Duration
	}
	// Tell is for all other routers, which take it in as RouterReported. Its Origin is not set.
	Tell struct{ Report *controlv1.RouterReport }
	// Refuse ends a request that waited. Decision is what spoke against it; nil: workers had
	// no part in that.
	Refuse struct {
		ID       string
		Refusal  Refusal
		Decision *controlv1.Decision
	}
)

func (Connect) action()        {}
func (Forget) action()         {}
func (DuplicateID) action()    {}
func (ListBlocks) action()     {}
func (TooManyWorkers) action() {}
func (Dispatch) action()       {}
func (Pinned) action()         {}
func (Disagree) action()       {}
func (Foreign) action()        {}
func (Distrusted) action()     {}
func (PathLost) action()       {}
func (Suspected) action()      {}
func (Tell) action()           {}
func (Refuse) action()         {}

// Refusal says why a request is not served.
type Refusal struct {
	Code       codes.Code
	Reason     string        // one of api's Reason constants; of a hedged attempt, HedgeBudget or HedgeNoCapacity
	Field      string        // of the request that is to blame, if one is
	Message    string        // for people: says what to do
	RetryAfter time.Duration // when another attempt may go well; 0: never as it is
}

// Error is the message with its code.
func (r *Refusal) Error() string { return r.Code.String() + ": " + r.Message }
