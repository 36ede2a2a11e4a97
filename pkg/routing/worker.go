package routing

import (
	"strings"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// worker is what is known of one incarnation of a worker.
type worker struct {
	// What a search reads of every worker is first.
	ref         Ref
	connected   bool
	answered    bool // it has answered
	foreign     bool // left out for its version, and that was said
	busyUntil   time.Time
	loadAt      time.Time
	connectedAt time.Time
	usedAt      time.Time // when a request was last sent there
	facts
	owned       int  // len(own)
	unseenTotal sums // over unseen
	// elsewhere is what other routers say, where it has a number.
	elsewhere *elsewhere
	number    int
	reading
	prompted  prompted
	unseen    []*share    // this router's requests that the last load report may not count
	first     trackRecord // of first tokens of prompts that it computes
	tokens    trackRecord // of the time of a token that it decodes
	slowFirst slowness    // the same two, beside other workers
	slowToken slowness
	reserveMs float64 // from a dispatch to the reservation of its blocks here, on average
	lifeMs    float64 // what sequences take that decode there, on average; 0: none has ended
	suspicion

	sampled uint64 // number of the last sample that it was in

	load         *controlv1.LoadReport
	record       *controlv1.WorkerRecord
	said         *controlv1.WorkerRecord // what it said of itself; nil: it has not answered yet, or is a block store
	connectError string                  // why it is not connected, for people
	connection   uint64                  // number of its last connection
	registered   bool
	// missing is how long etcd has answered without listing it, not counting the time since
	// missingSince; zero: etcd lists it, or does not answer.
	missing      time.Duration
	missingSince time.Time
	// successor is a newer incarnation that etcd lists and that has not answered yet.
	successor *worker

	// listed is record as etcd has it, if the worker itself said, at leavesAt, that it takes
	// nothing new; else nil.
	listed   *controlv1.WorkerRecord
	leavesAt time.Time
	drained  bool // it has finished what it had

	own   map[string]*share // this router's requests that run on it
	total sums              // over own

	probe probe
	trust trust

	turn     uint64 // number of the last request that was sent there
	refusals int

	fetches fetchSpeed // from block stores

	expected []*expectation // prompts that it has computed and that no event has confirmed

	heardAt   time.Time // when a report, a KV event or its prefix cache came last
	doubtedAt time.Time // since when it is not certain what it holds; zero: it is, as far as is heard

	listing  bool      // an answer to ListBlocks is on its way
	listNext time.Time // a failed one is not asked again before
	gapNext  time.Time // nor for another missing event
	gap      bool      // an event is missing
	unlisted bool      // the index needs a snapshot
	// announced is the number of a KV event that has not come, though a load report said at
	// announcedAt that it was sent; 0: there is none.
	announced   uint64
	announcedAt time.Time
	checkAt     time.Time // when to see whether anything is heard of it; zero: no snapshot has come
	// listFailures is how many ListBlocks in a row failed.
	listFailures int
}

func (rt *Router) newWorker(record *controlv1.WorkerRecord) *worker {
	w := &worker{
		ref: Ref{record.GetId(), record.GetEpoch()},
		own: make(map[string]*share), reserveMs: firstReserveMs,
	}
	rt.elsewhere.number(w)
	w.believe(record)
	return w
}

// is reports whether a record is of this incarnation.
func (w *worker) is(record *controlv1.WorkerRecord) bool {
	return w.ref.Epoch == record.GetEpoch() && w.role() == record.GetRole()
}

// blocksFor is how many blocks tokens take on this worker.
func (w *worker) blocksFor(tokens int) int {
	size := max(w.blockTokens, 1)
	return (tokens + size - 1) / size
}

func (w *worker) role() controlv1.Role { return w.as }

func (w *worker) isStore() bool { return w.role() == controlv1.Role_ROLE_KVTRANSFER }

func (w *worker) drains() bool { return w.draining }

func byID(a, b *worker) int { return strings.Compare(a.ref.ID, b.ref.ID) }
