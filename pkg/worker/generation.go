package worker

import (
	"errors"
	"fmt"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// generation is the life of a sequence on a decode worker.
type generation struct {
	// ending: the stream is to end, with why, once ReserveKV is answered. ended: it has.
	ending, ended bool
	sequence      sequence // beside them in memory: they are read for every token

	pauses       bool
	promptTokens int
	cachedTokens int
	approximate  bool // the KV that arrived

	kv  reservation
	why error // of the end, where the scheduler does not know it; a gRPC status
}

// reservation is what may write into a generation's blocks.
type reservation int

const (
	unreserved reservation = iota // nothing, and never did
	asked                         // ReserveKV is not answered
	writable                      // whoever has the ticket
	broken                        // what is left of a transfer that will not commit
	closed                        // nothing any more
)

func (w *Worker) generate(e Generate) {
	g := &generation{pauses: e.Pauses, promptTokens: len(e.Request.Tokens)}
	if w.begin(&g.sequence, e.Request, g) {
		if queued := w.taken(e.Queued); queued != nil {
			g.send(w, &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Queued{Queued: queued}})
		}
		w.submit(e.Request)
	}
}

func (g *generation) over() bool { return g.ended }

func (g *generation) send(w *Worker, e *workerv1.DecodeEvent) {
	if !g.ending && !g.ended {
		w.act(SendDecode{ID: g.sequence.id, Event: e})
	}
}

// end ends the stream. What still writes is cancelled first.
func (g *generation) end(w *Worker, err error) {
	if g.ended {
		return
	}
	if g.kv == asked {
		if !g.ending {
			g.ending, g.why = true, err
		}
		return
	}
	if g.kv == writable {
		w.act(CancelKV{g.sequence.id})
	}
	g.ended = true
	w.act(End{ID: g.sequence.id, Err: err})
}

func (g *generation) take(w *Worker, action scheduler.Action) bool {
	switch a := action.(type) {
	case scheduler.Reserved:
		g.kv, g.cachedTokens = asked, a.CachedTokens
		blockTokens := w.config.Scheduler.BlockTokens
		w.act(ReserveKV{
			ID: g.sequence.id, Blocks: a.Blocks, Held: a.CachedTokens / blockTokens, Prompt: kvcache.BlocksFor(g.promptTokens, blockTokens),
		})
	case scheduler.Started:
		if g.kv == unreserved { // prefilled here
			g.cachedTokens = a.CachedTokens
		}
		g.send(w, &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Admitted{Admitted: &workerv1.Admitted{
			QueueNs: a.Waited.Nanoseconds(), CachedTokens: uint32(g.cachedTokens), Approximate: g.approximate,
		}}})
	case *scheduler.Sampled:
		return !g.ending && !g.ended
	case scheduler.PromptScored:
		g.scored(w, a)
		return false
	case scheduler.Preempted:
		g.stalled(w)
	case scheduler.Resumed:
		if g.pauses {
			g.send(w, &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Resumed{Resumed: &workerv1.Resumed{}}})
		}
	case scheduler.Refused:
		g.end(w, RefusedError(a.Reason))
	case scheduler.Finished:
		g.finished(w, a)
	}
	return true
}

// scored tells how likely tokens of the prompt are.
func (g *generation) scored(w *Worker, a scheduler.PromptScored) {
	message := &workerv1.PromptLogprobs{Offset: uint32(a.Offset), Logprobs: make([]*inferencev1.TokenLogprobs, len(a.Logprobs))}
	for i := range a.Logprobs {
		message.Logprobs[i] = a.Logprobs[i].Message()
	}
	g.send(w, &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_PromptLogprobs{PromptLogprobs: message}})
}

func (g *generation) stalled(w *Worker) {
	if g.pauses {
		g.send(w, &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Paused{Paused: &workerv1.Paused{}}})
	}
}

func (g *generation) finished(w *Worker, a scheduler.Finished) {
	switch reason := finishReason(a.Reason); {
	case g.why != nil:
		g.end(w, g.why)
	case reason != 0:
		g.send(w, &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Ended{Ended: &workerv1.Ended{
			Reason: reason, PrefillComputeNs: a.PrefillCompute.Nanoseconds(), DecodeComputeNs: a.DecodeCompute.Nanoseconds(),
			DraftTokens: uint32(a.Drafts), AcceptedDraftTokens: uint32(a.AcceptedDrafts),
		}}})
		g.end(w, nil)
	case a.Reason == scheduler.Failed:
		g.end(w, FailedError(a.Err))
	default:
		g.end(w, RefusedError(scheduler.Draining))
	}
}

func (g *generation) cancel(w *Worker, err error) {
	if g.ending || g.ended {
		return
	}
	if g.why == nil {
		g.why = err
	}
	w.schedule(scheduler.Cancel{ID: g.sequence.id}) // ends the stream, unless its blocks are being inspected
	g.end(w, g.why)
}

func (g *generation) reserved(w *Worker, e Reserved) {
	if g.kv != asked {
		return
	}
	g.kv = writable
	if g.ending {
		g.end(w, g.why)
		return
	}
	g.send(w, &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Reserved{Reserved: &workerv1.Reserved{
		Ticket: e.Ticket, CachedTokens: uint32(g.cachedTokens),
	}}})
}

func (g *generation) notReserved(w *Worker, e NotReserved) {
	if g.kv != asked {
		return
	}
	g.kv = closed
	if g.why == nil {
		g.why = e.Err
	}
	w.schedule(scheduler.TransferDone{ID: g.sequence.id})
	g.end(w, g.why)
}

func (g *generation) arrived(w *Worker, e Arrived) {
	if g.kv != writable {
		return
	}
	g.kv, g.approximate = closed, e.Approximate
	sampled := e.Sampled
	if err := checkSampled(sampled, w.config.VocabSize); err != nil {
		sampled = nil // ends the sequence
		if g.why == nil {
			g.why = brokenTransfer(err, false)
		}
	}
	w.schedule(scheduler.KVArrived{ID: g.sequence.id, Sampled: sampled, From: e.From, Approximate: e.Approximate})
}

// checkSampled refuses tokens that no engine takes: they would fail the step of every sequence
// beside this one.
func checkSampled(sampled []int32, vocabSize int) error {
	if len(sampled) == 0 {
		return errors.New("the sender committed without the token sampled from it")
	}
	for _, token := range sampled {
		if token < 0 || int(token) >= vocabSize {
			return fmt.Errorf("the sender sampled token %d, which is outside the vocabulary of %d", token, vocabSize)
		}
	}
	return nil
}

func (g *generation) broke(w *Worker, e Broke) {
	if g.kv != asked && g.kv != writable {
		return
	}
	g.kv = broken
	g.cancel(w, brokenTransfer(e.Err, e.Finished))
	g.end(w, g.why) // if it was cancelled before
}

func (g *generation) drained(w *Worker) {
	if g.kv != writable && g.kv != broken {
		return
	}
	g.kv = closed
	w.schedule(scheduler.TransferDone{ID: g.sequence.id})
}
