package worker

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// Config of a Worker.
type Config struct {
	// Scheduler is that of the scheduler, which the Worker owns, but for its Pool: that has
	// Blocks for a model and an arithmetic class.
	Scheduler                    scheduler.Config
	Blocks                       int
	ModelDigest, ArithmeticClass string
	// VocabSize is the model's.
	VocabSize int
}

// Worker is the state machine of one worker. It is not safe for concurrent use.
type Worker struct {
	config    Config
	scheduler *scheduler.Scheduler
	sequences map[scheduler.SequenceID]*sequence
	prefills  int    // of sequences, those whose owner is a *prefill
	preparing int    // prefills that the scheduler has not got yet; at most its MaxWaiting
	tasks     uint64 // that were begun
	stepping  stepping
	timing    latency.StepTime
	fault     ownFault

	// Of the present call of Handle:
	now       time.Time
	actions   []Action
	run       *scheduler.RunStep
	scheduled bool // the scheduler was called
}

// sequence is one from its first event until nothing of it is left.
type sequence struct {
	id       scheduler.SequenceID
	decoding bool   // every step computes a token of it, unless it lacks a block
	step     uint64 // the last that it was in
	// owner is what its service has of it: a *generation, a *prefill, or nil if it is bare, begun
	// by scheduler.Submit without a service.
	owner owner
	// prompt is its tokens, but for those that were generated before.
	prompt []int32
	// known: the scheduler has not released it. spoilt is its end, kept until it was
	// inspected; nil: there is none.
	known  bool
	spoilt *scheduler.Finished
}

// owner makes of the scheduler's actions for a sequence what its service has to do.
type owner interface {
	// take takes an action of the scheduler, and says whether the driver is to see it.
	take(w *Worker, a scheduler.Action) bool
	// stalled: the sequence keeps its blocks and waits for one more.
	stalled(w *Worker)
	// cancel ends the sequence with a gRPC status.
	cancel(w *Worker, err error)
	// over: the stream has ended.
	over() bool
}

// New makes a worker that waits for its first event.
func New(config Config) (*Worker, error) {
	config.Scheduler.Pool = kvcache.NewPool(config.Blocks, config.Scheduler.BlockTokens, config.ModelDigest, config.ArithmeticClass)
	s, err := scheduler.New(config.Scheduler)
	if err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	return &Worker{config: config, scheduler: s, sequences: make(map[scheduler.SequenceID]*sequence)}, nil
}

// Handle takes an event that happened at now and answers with what is to be done, in this
// order; a *scheduler.RunStep is the last. now never goes back. The slice is used again by the
// next call, and what the scheduler's actions point to as Scheduler.Handle says.
func (w *Worker) Handle(now time.Time, event Event) []Action {
	w.begins(now)
	switch e := event.(type) {
	case scheduler.StepDone:
		w.stepDone(e)
	case scheduler.Submit:
		if w.begin(new(sequence), e.Request, nil) {
			w.submit(e.Request)
		}
	case scheduler.Event:
		w.schedule(e)
	case Generate:
		w.generate(e)
	case Prefill:
		w.prefill(e)
	case StepTook:
		w.stepTook(e)
	case CancelAll:
		w.cancelAll()
	case Inspected:
		w.inspected(e)
	default:
		w.toSequence(event)
	}
	return w.ends()
}

// HandleStepDone is Handle of one type of event, without an interface value that would be
// allocated. So is HandleStepTook.
func (w *Worker) HandleStepDone(now time.Time, e scheduler.StepDone) []Action {
	w.begins(now)
	w.stepDone(e)
	return w.ends()
}

// HandleStepTook is as HandleStepDone.
func (w *Worker) HandleStepTook(now time.Time, e StepTook) []Action {
	w.begins(now)
	w.stepTook(e)
	return w.ends()
}

func (w *Worker) begins(now time.Time) {
	w.now, w.actions, w.scheduled, w.run = now, w.actions[:0], false, nil
}

func (w *Worker) ends() []Action {
	if w.run != nil {
		w.act(w.run)
	}
	return w.actions
}

func (w *Worker) stepDone(e scheduler.StepDone) {
	w.stepping.ended()
	w.schedule(e)
}

func (w *Worker) stepTook(e StepTook) { w.timing.Observe(e.Work, e.Compute) }

// Next is never: a worker needs no ticks.
func (w *Worker) Next() (at time.Time, ok bool) { return time.Time{}, false }

// toSequence hands an event to the sequence that it is of.
func (w *Worker) toSequence(event Event) {
	switch e := event.(type) {
	case Cancel:
		if q := w.sequences[e.ID]; q != nil && q.owner != nil {
			q.owner.cancel(w, e.Err)
			w.forget(q)
		}
	case Reserved:
		with(w, e.ID, func(g *generation) { g.reserved(w, e) })
	case NotReserved:
		with(w, e.ID, func(g *generation) { g.notReserved(w, e) })
	case Arrived:
		with(w, e.ID, func(g *generation) { g.arrived(w, e) })
	case Broke:
		with(w, e.ID, func(g *generation) { g.broke(w, e) })
	case Drained:
		with(w, e.ID, func(g *generation) { g.drained(w) })
	case Opened:
		with(w, e.ID, func(p *prefill) { p.opened(w) })
	case NotOpened:
		with(w, e.ID, func(p *prefill) { p.notOpened(w, e) })
	case Fetched:
		with(w, e.ID, func(p *prefill) { p.fetched(w, e) })
	case Sent:
		with(w, e.ID, func(p *prefill) { p.sent(w, e) })
	}
}

// with calls f with the owner of a sequence, if it is an O.
func with[O owner](w *Worker, id scheduler.SequenceID, f func(O)) {
	q := w.sequences[id]
	if q == nil {
		return
	}
	if o, is := q.owner.(O); is {
		f(o)
		w.forget(q)
	}
}

// begin adds a sequence, which q becomes, unless its id is known already: ids are not used again.
func (w *Worker) begin(q *sequence, r scheduler.Request, o owner) bool {
	if w.sequences[r.ID] != nil {
		w.act(scheduler.Refused{ID: r.ID, Reason: scheduler.Invalid})
		return false
	}
	generated := min(max(r.Generated, 0), len(r.Tokens)) // the scheduler refuses others
	*q = sequence{id: r.ID, owner: o, prompt: r.Tokens[:len(r.Tokens)-generated]}
	w.sequences[r.ID] = q
	if _, is := o.(*prefill); is {
		w.prefills++
	}
	return true
}

// submit hands the request of a sequence to the scheduler.
func (w *Worker) submit(r scheduler.Request) {
	w.sequences[r.ID].known = true
	w.schedule(scheduler.Submit{Request: r})
}

// forget lets a sequence go of which nothing is left.
func (w *Worker) forget(q *sequence) {
	if q.known || q.spoilt != nil || w.sequences[q.id] != q || q.owner != nil && !q.owner.over() {
		return
	}
	delete(w.sequences, q.id)
	if _, is := q.owner.(*prefill); is {
		w.prefills--
	}
	w.act(Gone{q.id})
}

func (w *Worker) act(a Action) { w.actions = append(w.actions, a) }

// schedule gives an event to the scheduler and takes what it asks for.
func (w *Worker) schedule(e scheduler.Event) {
	if w.scheduled {
		w.keepChanges()
	}
	w.scheduled = true
	for _, action := range w.scheduler.Handle(w.now, e) {
		switch a := action.(type) {
		case *scheduler.RunStep:
			w.stepping.next = 0
			for _, part := range a.Parts {
				w.stepping.add(w.stepping.sequence(w, part.ID), part)
			}
			w.run = a
		case *scheduler.Sampled:
			q := w.stepping.sequence(w, a.ID)
			q.decoding = true
			w.tell(q, a)
		case scheduler.PromptScored:
			w.tell(w.sequences[a.ID], a)
		case scheduler.Reserved:
			w.tell(w.sequences[a.ID], a)
		case scheduler.Started:
			w.tell(w.sequences[a.ID], a)
		case scheduler.Preempted:
			q := w.sequences[a.ID]
			q.decoding = false
			w.tell(q, a)
		case scheduler.Resumed:
			w.tell(w.sequences[a.ID], a)
		case scheduler.Finished:
			q := w.sequences[a.ID]
			q.decoding = false
			if a.NotFinite != nil {
				q.spoilt = &a
				w.act(Inspect{ID: a.ID, NotFinite: a.NotFinite})
			} else {
				w.tell(q, a)
			}
		case scheduler.Refused:
			q := w.sequences[a.ID]
			q.known = false
			w.tell(q, a)
			w.forget(q)
		case scheduler.Released:
			q := w.sequences[a.ID]
			q.known = false
			w.forget(q)
		default:
			w.act(a)
		}
	}
	if _, is := e.(scheduler.StepDone); is {
		w.stepping.stalls(w)
	}
}

// keepChanges copies what the next call of the scheduler would overwrite.
func (w *Worker) keepChanges() {
	for i, action := range w.actions {
		if changed, is := action.(*scheduler.BlocksChanged); is {
			w.actions[i] = &scheduler.BlocksChanged{Stored: slices.Clone(changed.Stored), Removed: slices.Clone(changed.Removed)}
		}
	}
}

// tell hands an action of the scheduler to the sequence that it is of, and to the driver.
func (w *Worker) tell(q *sequence, a scheduler.Action) {
	if q.owner == nil || q.owner.take(w, a) {
		w.act(a)
	}
}

// inspected gives a sequence the end that it had when its logits were not finite.
func (w *Worker) inspected(e Inspected) {
	q := w.sequences[e.ID]
	if q == nil || q.spoilt == nil {
		return
	}
	end := *q.spoilt
	q.spoilt = nil
	if e.Err != nil {
		end.Err = e.Err
		if e.Err.Origin == "" && !e.Err.Uninspected && w.fault.add(w.now, q.prompt, e.Err.NotFiniteError) {
			w.act(Fault{})
		}
	}
	w.tell(q, end)
	w.forget(q)
}

// cancelAll ends every sequence, newest first: few that wait begin in the place of those that
// end.
func (w *Worker) cancelAll() {
	for _, id := range slices.Backward(slices.Sorted(maps.Keys(w.sequences))) {
		q := w.sequences[id]
		if q.owner == nil {
			w.schedule(scheduler.Cancel{ID: id})
			continue
		}
		q.owner.cancel(w, RefusedError(scheduler.Draining))
		w.forget(q)
	}
}

// Draining says whether scheduler.Drain came, and no Undrain since.
func (w *Worker) Draining() bool { return w.scheduler.Draining() }

// Snapshot is scheduler.Scheduler's.
func (w *Worker) Snapshot() []kvcache.Hash { return w.scheduler.Snapshot() }

// PoolStats is scheduler.Scheduler's.
func (w *Worker) PoolStats() kvcache.Stats { return w.scheduler.PoolStats() }

// Cached is scheduler.Scheduler's.
func (w *Worker) Cached(salt string, hashes []kvcache.Hash, tokens []int32) int {
	return w.scheduler.Cached(salt, hashes, tokens)
}
