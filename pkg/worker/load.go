package worker

import (
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// Load is what the scheduler says of itself, with the prefills that it has not got yet as
// waiting ones, and the model of its step time.
func (w *Worker) Load() (scheduler.Load, latency.Model) {
	load := w.scheduler.Load()
	if w.preparing > 0 {
		for _, q := range w.sequences {
			if p, is := q.owner.(*prefill); is && p.prepares {
				load.WaitingSequences++
				load.Waits(len(p.request.Tokens))
			}
		}
	}
	return load, w.timing.Model()
}

// taken counts a task, and tells the router that wants to know.
func (w *Worker) taken(wanted bool) *workerv1.Queued {
	w.tasks++
	if !wanted {
		return nil
	}
	return &workerv1.Queued{Task: w.tasks}
}

// StepTime is the model of what steps take.
func (w *Worker) StepTime() latency.Model { return w.timing.Model() }

// LoadReport is the load as routers are told of it. Origin is the publisher's to fill in.
func (w *Worker) LoadReport(role controlv1.Role) *controlv1.LoadReport {
	load, model := w.Load()
	lengths := len(load.PromptTokens)
	for lengths > 0 && load.PromptTokens[lengths-1] == 0 {
		lengths--
	}
	byLength := make([]uint64, lengths)
	for i := range byLength {
		byLength[i] = uint64(load.PromptTokens[i])
	}
	return &controlv1.LoadReport{
		Role:                    role,
		Tasks:                   w.tasks,
		WaitingSequences:        uint32(load.WaitingSequences),
		WaitingTokens:           uint64(load.WaitingTokens),
		RunningPromptTokens:     uint64(load.RunningPromptTokens),
		PromptTokensByLength:    byLength,
		StepPromptTokens:        uint64(load.StepPromptTokens),
		CrowdedStepPromptTokens: uint64(load.CrowdedStepPromptTokens),
		UnsentTokens:            uint64(w.unsent()),
		RunningSequences:        uint32(load.RunningSequences),
		RunningContextTokens:    uint64(load.RunningContextTokens),
		DecodingSequences:       uint32(load.DecodingSequences),
		DecodingContextTokens:   uint64(load.DecodingContextTokens),
		BlocksFree:              uint32(load.BlocksFree - load.BlocksExpected),
		BlocksReserved:          uint32(load.BlocksReserved),
		BlocksQuarantined:       uint32(load.BlocksQuarantined),
		BlocksTotal:             uint32(load.BlocksTotal),
		StepTime: &controlv1.StepTimeModel{
			BaseMs: model.BaseMs, PerTokenMs: model.PerTokenMs, PerContextTokenMs: model.PerContextTokenMs, PerSquareMs: model.PerSquareMs, Samples: model.Samples, MostTokens: uint64(model.MostTokens),
		},
	}
}

// Remaining is how many sequences are known still, those included that ended but whose blocks
// a transfer holds.
func (w *Worker) Remaining() int { return len(w.sequences) }

// Transfers is how many KV transfers of sequences have not ended. It takes time in proportion
// to the sequences known.
func (w *Worker) Transfers() (open int) {
	for _, q := range w.sequences {
		switch o := q.owner.(type) {
		case *generation:
			if o.kv == writable || o.kv == broken {
				open++
			}
		case *prefill:
			if o.transfer == sending || o.transfer == fetching {
				open++
			}
		}
	}
	return open
}

// unsent is how many tokens of prompts decode workers lack, whose KV is to be sent to them or on its
// way. It takes time in proportion to the sequences known, if there are prefills among them.
func (w *Worker) unsent() (tokens int) {
	if w.prefills == 0 {
		return 0
	}
	for _, q := range w.sequences {
		if p, is := q.owner.(*prefill); is && p.transfer <= fetching && p.why == nil {
			tokens += max(len(p.request.Tokens)-p.held*w.config.Scheduler.BlockTokens, 0)
		}
	}
	return tokens
}
