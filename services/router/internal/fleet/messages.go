package fleet

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

// Request is what the policy has to know of a request.
type Request struct {
	// ID names the request, the same over all its attempts and no other's.
	ID string
	// Attempt is 0 at first and one more for each time it was started again.
	Attempt int
	// Tenant that it counts for.
	Tenant string
	// Model is the name that workers must have; with ModelDigest, the digest must
	// be theirs instead. Empty: the router has not read the weights.
	Model, ModelDigest string
	// Mode that was asked for.
	Mode inferencev1.Mode
	// Priority: higher first.
	Priority int32
	// Arrived is when the request, not this attempt, came in.
	Arrived time.Time
	// Deadline of the whole request; zero is none.
	Deadline time.Time
	// Tokens to compute before the first one is sampled.
	Tokens int
	// MaxNew is how many tokens it may generate.
	MaxNew int
	// TTFT and TPOT are its objective; 0 is none.
	TTFT, TPOT time.Duration
	// Hashes is the chained hashes of the whole blocks of its tokens, for a model
	// digest, an arithmetic class and a block size. It is pure, and called once for
	// each of those. Nil: no prefix is known.
	Hashes func(modelDigest, class string, blockTokens int) []kvcache.Hash
	// Failures are workers that failed in this request.
	Failures []Failure
	// Lineage restricts it to workers of that Dispatch.Lineage: tokens already
	// delivered are reproducible only there. Empty: any.
	Lineage string
}

// Failure is a worker that failed in a request.
type Failure struct {
	Worker Ref
	// Gone: its connection broke or it leaves, so it is not tried again. Others
	// are tried again only if nothing else is there.
	Gone bool
	// Busy: it refused for want of room, which says nothing against it later.
	Busy bool
	// Silent: it said nothing for too long.
	Silent bool
	// Replaced: another incarnation answers in its place, so it is dead.
	Replaced bool
	// Leaves: it takes nothing new any more.
	Leaves bool
	// Unreached is the decode worker to which no transfer from Worker could begin,
	// and Why what was wrong: it speaks against the pair, and against neither alone.
	Unreached Ref
	Why       string
	// RetryAfter is when it said to come back; 0 if it did not.
	RetryAfter time.Duration
}

// Event is what happens to a fleet: one of the types below.
type Event interface{ event() }

type (
	// ViewChanged is what etcd lists. With Live false the view is the last one
	// that was seen and nothing is concluded from absence.
	ViewChanged struct {
		Workers []*controlv1.WorkerRecord
		Live    bool
	}
	// Connected says that the connection to a worker is ready and that this
	// incarnation answers on it. Blocks is its prefix cache; nil if it is not known.
	Connected struct {
		Worker Ref
		Blocks *workerv1.ListBlocksResponse
	}
	// Disconnected says that it is not any more.
	Disconnected struct{ Worker Ref }
	// LoadReported is a worker's load report.
	LoadReported struct{ Report *controlv1.LoadReport }
	// BlocksChanged is a worker's KV event.
	BlocksChanged struct{ Event *controlv1.KvEvent }
	// BlocksListed answers ListBlocks; Response is nil if that failed.
	BlocksListed struct {
		Worker   Ref
		Response *workerv1.ListBlocksResponse
	}
	// Arrived hands in a request or its next attempt. It is answered by exactly
	// one Dispatch or Refuse, unless Cancelled comes first.
	Arrived struct{ Request Request }
	// PromptDone says that the prompt of a dispatched request is computed, so that a
	// transfer of its KV has begun, if there is one.
	PromptDone struct{ ID string }
	// Fetched is what a worker that asked Dispatch.Source says of it, and how many
	// tokens of the prompt it got, in what time.
	Fetched struct {
		Store, Worker Ref
		Verdict       workerv1.FetchVerdict
		Tokens        int
		Took          time.Duration
	}
	// Ended ends a dispatched attempt. Unknown ones are ignored.
	Ended struct {
		ID       string
		Failures []Failure
	}
	// Cancelled takes a request out of the queue. Unknown ones are ignored.
	Cancelled struct{ ID string }
	// PolicyChanged is a new policy of the operators; nil: the configuration.
	PolicyChanged struct{ Policy *controlv1.Policy }
	// Tick is the passing of time; due at Next.
	Tick struct{}
)

func (ViewChanged) event()   {}
func (Connected) event()     {}
func (Disconnected) event()  {}
func (LoadReported) event()  {}
func (BlocksChanged) event() {}
func (BlocksListed) event()  {}
func (Arrived) event()       {}
func (PromptDone) event()    {}
func (Fetched) event()       {}
func (Ended) event()         {}
func (Cancelled) event()     {}
func (PolicyChanged) event() {}
func (Tick) event()          {}

// Action is what a fleet wants done: one of the types below.
type Action interface{ action() }

type (
	// Connect asks for a connection to a worker, to be kept until Forget.
	Connect struct {
		Worker Ref
		Record *controlv1.WorkerRecord
	}
	// Forget says that a worker is not wanted any more.
	Forget struct{ Worker Ref }
	// Doubled says that two workers are registered under one id and that only one
	// is used. It needs an operator.
	Doubled struct {
		ID    string
		Roles [2]controlv1.Role
	}
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
		// ModelDigest is that of the workers.
		ModelDigest string
		// Lineage names the weights and arithmetic of the workers.
		Lineage string
		// Fallback: mode auto would have disaggregated, had there been a prefill
		// worker that can send to a decode worker.
		Fallback bool
		// Decision is the record of the choice; the receiver owns it.
		Decision *controlv1.Decision
	}
	// PathLost says that no transfer from a prefill to a decode worker could begin,
	// and that the pair is left alone for Wait.
	PathLost struct {
		Prefill, Decode Ref
		Why             string
		Wait            time.Duration
	}
	// Refuse ends a request that waited.
	Refuse struct {
		ID      string
		Refusal Refusal
	}
)

func (Connect) action()    {}
func (Forget) action()     {}
func (Doubled) action()    {}
func (ListBlocks) action() {}
func (Dispatch) action()   {}
func (PathLost) action()   {}
func (Refuse) action()     {}

// Refusal says why a request is not served.
type Refusal struct {
	Code codes.Code
	// Reason is machine-readable: one of the Reason constants.
	Reason string
	// Field of the request that is to blame, if one is.
	Field string
	// Message is for people and says what to do.
	Message string
	// RetryAfter is when another try may go well; 0: never as it is.
	RetryAfter time.Duration
}

// Reasons of refusals.
const (
	ReasonQueueFull    = "QUEUE_FULL"
	ReasonQueueTimeout = "QUEUE_TIMEOUT"
	ReasonTenantLimit  = "TENANT_LIMIT"
	ReasonSLO          = "SLO_UNATTAINABLE"
	ReasonNoWorkers    = "NO_WORKERS"
	ReasonWorkerLost   = "WORKER_LOST"
	ReasonNeverFits    = "NEVER_FITS"
	ReasonUnreachable  = "KV_UNREACHABLE"
	ReasonDeadline     = "DEADLINE"
	ReasonDuplicate    = "DUPLICATE"
)

// Error is the message with its code.
func (r *Refusal) Error() string { return r.Code.String() + ": " + r.Message }
