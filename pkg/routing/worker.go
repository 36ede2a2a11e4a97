package routing

import (
	"strings"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// worker is what is known of one incarnation of a worker.
type worker struct {
	// What comes with every load report and what a search reads of every worker is first.
	ref         Ref
	connected   bool
	answered    bool // it has answered
	foreign     bool // left out for its version, and that was said
	owned       int  // len(own)
	load        *controlv1.LoadReport
	loadAt      time.Time
	heardAt     time.Time // when a report, a KV event or its prefix cache came last
	applied     uint64    // the index has had its KV events up to that number, if it is in sync
	trust       trust
	announced   uint64         // the number of a KV event that has not come; 0: there is none
	unseen      []*requestLoad // this router's requests that the last load report may not count
	unseenTotal loadSum        // over unseen
	promptTime  promptTime
	// peerLoads is what other routers say, where it has a number.
	peerLoads *peerLoads
	number    int
	suspicion
	reading
	busyUntil   time.Time
	connectedAt time.Time
	usedAt      time.Time // when a request was last sent there
	facts
	first        trackRecord // of first tokens of prompts that it computes
	firstAlone   trackRecord // of those where nothing was in their way
	tokens       trackRecord // of the time of a token that it decodes
	slowFirst    slowness    // first and tokens, beside other workers
	slowToken    slowness
	reserveMs    float64   // from a dispatch to the reservation of its blocks here, on average
	sequenceMs   float64   // what sequences take that decode there, on average; 0: none has ended
	decodedAt    time.Time // when one last ended
	decodedCount int       // how many have, with less than decodedForget between them; at most decodedLeast

	sampled uint64 // number of the last sample that it was in

	record           *controlv1.WorkerRecord
	identifiedRecord *controlv1.WorkerRecord // what it said of itself; nil: it has not answered yet, or is a block store
	connectError     string                  // why it is not connected, for people
	connection       uint64                  // number of its last connection
	registered       bool
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

	own   map[string]*ownLoad // this router's requests that run on it
	total loadSum             // over own

	probe probe

	turn     uint64 // number of the last request that was sent there
	refusals int

	fetches fetchSpeed // from block stores
	speed   ownSpeed   // of KV that it sends to or gets from other workers
	senders []sender   // of a decode worker, those that it got KV from, at most sendersMost

	expected []*expectation // prompts that it has computed and that no event has confirmed

	doubtedAt time.Time // since when it is not certain what it holds; zero: it is, as far as is heard

	listing     bool      // an answer to ListBlocks is on its way
	listNext    time.Time // a failed one is not asked again before
	gapNext     time.Time // nor for another missing event
	gap         bool      // an event is missing
	unlisted    bool      // the index needs a snapshot
	announcedAt time.Time // when a load report said that the event announced was sent
	checkAt     time.Time // when to see whether anything is heard of it; zero: no snapshot has come
	// listFailures is how many ListBlocks in a row failed.
	listFailures int
}

func (rt *Router) newWorker(record *controlv1.WorkerRecord) *worker {
	w := &worker{
		ref: Ref{record.GetId(), record.GetEpoch()},
		own: make(map[string]*ownLoad), reserveMs: firstReserveMs,
	}
	rt.peerLoads.number(w)
	w.setRecord(record)
	return w
}

// fetch reads what a search does, of each line of memory a little. A processor waits for many lines at
// a time where none of them has to be there for the next, and of many workers hardly any is in a
// cache. What it returns means nothing.
func (w *worker) fetch() int {
	fetched := w.owned + w.unseenTotal.count + w.number + w.hangs + w.reads.count + int(w.prompts[0]+w.prompts[api.PromptLengths/2]) +
		w.running + w.usedAt.Nanosecond() + w.blocks + w.maxWaiting + len(w.model) + int(w.first.late+w.firstAlone.late+w.tokens.late) + w.slowFirst.observed + w.slowToken.observed +
		w.trust.times + w.heardAt.Nanosecond()
	for _, t := range w.peerLoads.told {
		if w.number < len(t.shares) {
			fetched += int(t.shares[w.number].report)
		}
	}
	return fetched
}

// Fetch has the processor read what a message of a worker will need, for whoever has one for several
// routers. What it returns means nothing.
func (rt *Router) Fetch(worker string) int {
	if w := rt.workers[worker]; w != nil {
		return w.fetch()
	}
	return 0
}

// is reports whether a record is of this incarnation.
func (w *worker) is(record *controlv1.WorkerRecord) bool {
	return w.ref.Epoch == record.GetEpoch() && w.role == record.GetRole()
}

// blocksFor is how many blocks tokens take on this worker.
func (w *worker) blocksFor(tokens int) int {
	return kvcache.BlocksFor(tokens, max(w.blockTokens, 1))
}

func (w *worker) isStore() bool { return w.role == controlv1.Role_ROLE_KVTRANSFER }

func byID(a, b *worker) int { return strings.Compare(a.ref.ID, b.ref.ID) }
