package api

import (
	"fmt"
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// Stage is one of the parts that a request's time is made of. They follow one
// another without gap and add up to its total.
type Stage int

// The stages, in their order. Those up to StagePrefill come before the first token.
const (
	StageTokenize Stage = iota
	StageRetried
	StageQueue
	StageDecide
	StageReserve
	StagePrefill
	StageTransferExposed
	StageDecode
	// NumStages is how many there are.
	NumStages
)

var stages = [NumStages]struct {
	name string
	ns   func(*inferencev1.Timings) int64
}{
	StageTokenize:        {"tokenize", (*inferencev1.Timings).GetTokenizeNs},
	StageRetried:         {"retried", (*inferencev1.Timings).GetRetriedNs},
	StageQueue:           {"queue", (*inferencev1.Timings).GetQueueNs},
	StageDecide:          {"decide", (*inferencev1.Timings).GetDecideNs},
	StageReserve:         {"reserve", (*inferencev1.Timings).GetReserveNs},
	StagePrefill:         {"prefill", (*inferencev1.Timings).GetPrefillNs},
	StageTransferExposed: {"transfer_exposed", (*inferencev1.Timings).GetTransferExposedNs},
	StageDecode:          {"decode", (*inferencev1.Timings).GetDecodeNs},
}

// String is the stage's name, as in flags and metrics: "transfer_exposed".
func (s Stage) String() string {
	if s < 0 || s >= NumStages {
		return fmt.Sprintf("stage %d", int(s))
	}
	return stages[s].name
}

// StagesOf is what each stage of a request took.
func StagesOf(t *inferencev1.Timings) (took [NumStages]time.Duration) {
	for s := range stages {
		took[s] = time.Duration(stages[s].ns(t))
	}
	return took
}
