package routing

import (
	"cmp"
	"math"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// A search looks at every worker. What it needs of their messages is kept beside one
// another.

// facts are what a search needs of a worker's record.
type facts struct {
	role            controlv1.Role
	takesAggregated bool // a prefill worker that does all of some requests, too
	draining        bool
	blocks          int
	blockTokens     int
	contextTokens   int
	chunk           int  // tokens of one prompt in a step, at most; 0: it does not say
	maxBatch        int  // tokens in a step; 0: it does not say
	keepsTPOT       bool // its prompts leave those that decode the time that they want for a token
	maxSequences    int
	maxWaiting      int
	layoutDigest    uint64
	bytesPerToken   float64 // of KV, over all layers
	version         Version
	model           string
}

// setRecord takes in a worker's record.
func (w *worker) setRecord(record *controlv1.WorkerRecord) {
	c, l := record.GetCapacity(), record.GetLayout()
	w.record = record
	w.facts = facts{
		role: record.GetRole(), takesAggregated: record.GetRole() == controlv1.Role_ROLE_PREFILL && record.GetWholeRequests(),
		draining: record.GetState() == controlv1.WorkerState_WORKER_STATE_DRAINING,
		blocks:   int(c.GetBlocks()), blockTokens: int(c.GetBlockTokens()), contextTokens: int(c.GetContextTokens()),
		chunk:        int(cmp.Or(c.GetChunkTokens(), c.GetMaxBatchTokens())),
		keepsTPOT:    record.GetKeepsTpot(),
		maxBatch:     int(c.GetMaxBatchTokens()),
		maxSequences: int(c.GetMaxSequences()), maxWaiting: int(c.GetMaxWaiting()),
		layoutDigest: record.GetLayoutDigest(), version: Version{record.GetModelDigest(), l.GetArithmeticClass()}, model: record.GetModel(),
	}
	if l.GetBlockTokens() > 0 {
		w.bytesPerToken = float64(l.GetLayers()) * float64(l.GetSliceBytes()) / float64(l.GetBlockTokens())
	}
	w.read(w.load)
}

// reading is what a search needs of a worker's load report.
type reading struct {
	reads loadSum // what it says
	// prompts are the tokens of prompts to compute, at n of those of which no more than n bits
	// express how many are left. inStep is how many of all a step may be computing.
	prompts [api.PromptLengths]int32
	inStep  int
	budget  int // tokens of a prompt in a step in which a sequence decodes; 0: it does not say
	running int // sequences in the batch, or about to be
	step    latency.Model
}

// read takes in a load report; nil is none.
func (w *worker) read(load *controlv1.LoadReport) {
	w.load = load
	// A worker that has more than it can hold has as much as it can hold.
	mostRunning := uint64(w.maxSequences) * uint64(w.contextTokens)
	w.reads = loadSum{
		count:   int(atMost(uint64(load.GetRunningSequences())+uint64(load.GetWaitingSequences()), uint64(w.maxSequences)+uint64(w.maxWaiting))),
		tokens:  clampInt(atMost(load.GetWaitingTokens(), uint64(w.maxWaiting)*uint64(w.contextTokens)) + atMost(load.GetRunningPromptTokens(), mostRunning)),
		context: clampInt(atMost(load.GetRunningContextTokens(), uint64(w.maxSequences)*uint64(w.contextTokens))),
		blocks:  w.blocks - int(atMost(uint64(load.GetBlocksFree()), uint64(w.blocks))),
	}
	// Those whose KV is still to come are no more than there are blocks.
	w.reads.decoding = clampInt(atMost(uint64(load.GetDecodingSequences()), uint64(w.maxSequences)+uint64(w.maxWaiting)+uint64(w.blocks)))
	w.reads.decodingContext = clampInt(atMost(load.GetDecodingContextTokens(), uint64(max(w.reads.decoding, 1))*uint64(w.contextTokens)))
	if w.role == controlv1.Role_ROLE_DECODE { // all that is there is decoded, also where a version does not say so
		w.reads.decoding = max(w.reads.decoding, w.reads.count)
		w.reads.decodingContext = max(w.reads.decodingContext, w.reads.context)
		w.reads.moving = int(atMost(uint64(load.GetBlocksReserved()), uint64(w.blocks))) * w.blockTokens
	} else {
		w.reads.moving = clampInt(atMost(load.GetUnsentTokens(), (uint64(w.maxSequences)+uint64(w.maxWaiting))*uint64(w.contextTokens)))
	}
	w.inStep = clampInt(atMost(min(load.GetRunningPromptTokens(), mostRunning), uint64(w.chunk)))
	w.budget = clampInt(cmp.Or(load.GetCrowdedStepPromptTokens(), load.GetStepPromptTokens()))
	w.running = min(clampInt(uint64(load.GetRunningSequences())), w.reads.count)
	byLength := load.GetPromptTokensByLength()
	so := uint64(0)
	for i := range w.prompts {
		if i < len(byLength) {
			so = min(so+min(byLength[i], math.MaxInt32), uint64(w.reads.tokens))
		}
		w.prompts[i] = int32(so)
		if len(byLength) == 0 { // of a version that does not say
			w.prompts[i] = int32(w.reads.tokens)
		}
	}
	w.step = measured(load.GetStepTime())
}
