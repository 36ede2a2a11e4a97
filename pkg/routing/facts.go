package routing

import (
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// A search looks at every worker. What it needs of their messages is kept beside one
// another.

// facts are what a search needs of a worker's record.
type facts struct {
	as            controlv1.Role
	draining      bool
	blocks        int
	blockTokens   int
	contextTokens int
	maxBatch      int // tokens
	maxSequences  int
	maxWaiting    int
	layoutDigest  uint64
	bytesPerToken float64 // of KV, over all layers
	has           Version
	model         string
}

// believe takes in a worker's record.
func (w *worker) believe(record *controlv1.WorkerRecord) {
	c, l := record.GetCapacity(), record.GetLayout()
	w.record = record
	w.facts = facts{
		as: record.GetRole(), draining: record.GetState() == controlv1.WorkerState_WORKER_STATE_DRAINING,
		blocks: int(c.GetBlocks()), blockTokens: int(c.GetBlockTokens()), contextTokens: int(c.GetContextTokens()),
		maxBatch: int(c.GetMaxBatchTokens()), maxSequences: int(c.GetMaxSequences()), maxWaiting: int(c.GetMaxWaiting()),
		layoutDigest: record.GetLayoutDigest(), has: Version{record.GetModelDigest(), l.GetArithmeticClass()}, model: record.GetModel(),
	}
	if l.GetBlockTokens() > 0 {
		w.bytesPerToken = float64(l.GetLayers()) * float64(l.GetSliceBytes()) / float64(l.GetBlockTokens())
	}
	w.read(w.load)
}

// reading is what a search needs of a worker's load report.
type reading struct {
	reads estimate // what it says
	step  latency.Model
	known bool // step was measured
}

// read takes in a load report; nil is none.
func (w *worker) read(load *controlv1.LoadReport) {
	w.load = load
	// A worker that has more than it can hold has as much as it can hold.
	w.reads = estimate{
		sequences: int(atMost(uint64(load.GetRunningSequences())+uint64(load.GetWaitingSequences()), uint64(w.maxSequences)+uint64(w.maxWaiting))),
		tokens:    clampInt(atMost(load.GetWaitingTokens(), uint64(w.maxWaiting)*uint64(w.contextTokens))),
		context:   clampInt(atMost(load.GetRunningContextTokens(), uint64(w.maxSequences)*uint64(w.contextTokens))),
		free:      int(atMost(uint64(load.GetBlocksFree()), uint64(w.blocks))),
	}
	w.step, w.known = measured(load.GetStepTime())
}
