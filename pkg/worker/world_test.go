package worker_test

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// vocabulary of the fake engine: small, so that stop tokens happen.
const vocabulary = 5

// tester is what a test of either kind can do.
type tester interface {
	Helper()
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

var _ tester = (*testing.T)(nil)

// world is a worker with a fake engine and fake services, and knows what the worker must
// never do. Nothing in it happens by itself.
type world struct {
	t       tester
	config  scheduler.Config
	core    *worker.Worker
	twin    *worker.Worker // is told the same, and has to answer the same
	now     time.Time
	history []worker.Event

	sequences       map[scheduler.SequenceID]*sequence
	order           []*sequence // as they began
	lastID          scheduler.SequenceID
	draining        bool
	inFlight        *scheduler.RunStep
	backgroundTasks []worker.Action // Inspect and Scrub, in order
	saves           []scheduler.SaveID
	cache           map[kvcache.Hash]bool // BlocksChanged added up
}

// sequence is one as its service and its client know it.
type sequence struct {
	id       scheduler.SequenceID
	request  scheduler.Request
	generate *worker.Generate // or
	prefill  *worker.Prefill  // or, of a bare sequence, neither

	table     []kvcache.BlockID
	cached    int // leading blocks that came from the prefix cache
	overAt    int // the number of the event that ended it there; 0: it goes on
	finished  *scheduler.Finished
	refused   bool
	inspected bool
	gone      bool
	pausedAt  int  // the number of the event with which it was preempted or stalled; a Generate has to hear of it
	released  bool // a bare sequence: TransferDone was sent

	stream
	service
}

// service is whoever carries the actions of a sequence out: later, in order.
type service struct {
	queue    []worker.Action // to carry out
	fetching bool            // which the queue waits for
	calls    []worker.Event  // that the worker will be told of, in order
	transfer transfer
	// told is what the worker has heard of the transfer.
	told transfer
	// aborted and committed: the worker asked for it.
	aborted, committed bool
	offers             []worker.Offer // of the last event: of the worker, and of a step
	covered            []int          // how often each block of a prompt was offered
}

// transfer is one as its own machine knows it.
type transfer int

const (
	none transfer = iota
	opened
	broken   // it has failed, or was cancelled, and may still touch blocks
	finished // it touches no block any more
)

func newWorld(t tester, blocks int, config scheduler.Config) *world {
	t.Helper()
	w := &world{t: t, now: time.Unix(1000, 0), sequences: map[scheduler.SequenceID]*sequence{}, cache: map[kvcache.Hash]bool{}}
	for _, core := range []**worker.Worker{&w.core, &w.twin} {
		made, err := worker.New(worker.Config{Scheduler: config, Blocks: blocks, ModelDigest: "model", ArithmeticClass: "class", VocabSize: vocabulary})
		if err != nil {
			t.Fatalf("new: %v", err)
		}
		*core = made
	}
	w.config = config
	return w
}

// fatalf says what is wrong, and the history that it is the end of.
func (w *world) fatalf(format string, args ...any) {
	w.t.Helper()
	var text strings.Builder
	for _, e := range w.history {
		fmt.Fprintf(&text, "\t%T%+v\n", e, e)
	}
	w.t.Logf("history:\n%s", text.String())
	w.t.Fatalf(format, args...)
}

// handle tells the worker of an event and takes what it wants done.
func (w *world) handle(event worker.Event) {
	w.t.Helper()
	w.history = append(w.history, event)
	actions := w.core.Handle(w.now, event)
	if again := w.twin.Handle(w.now, event); !reflect.DeepEqual(actions, again) {
		w.fatalf("equal histories give %v and %v", actions, again)
	}
	for i, action := range actions {
		if _, is := action.(*scheduler.RunStep); is && i != len(actions)-1 {
			w.fatalf("a step is not the last action")
		}
		w.take(action)
	}
	w.check()
}

func (w *world) take(action worker.Action) {
	switch a := action.(type) {
	case *scheduler.RunStep:
		w.runStep(a)
	case scheduler.Reserved:
		w.begins(a.ID, a.Blocks, a.CachedTokens)
		if l := w.live(a.ID); l.bare() {
			l.transfer = opened
		}
	case scheduler.Started:
		w.begins(a.ID, a.Blocks, a.CachedTokens)
	case scheduler.Resumed:
		w.begins(a.ID, a.Blocks, a.CachedTokens)
	case scheduler.Preempted:
		l := w.live(a.ID)
		l.table, l.pausedAt = nil, len(w.history)
	case *scheduler.Sampled:
		w.sampled(a)
	case scheduler.Finished:
		w.finished(a)
	case scheduler.Refused:
		w.refused(a)
	case *scheduler.BlocksChanged:
		for _, hash := range a.Removed {
			delete(w.cache, hash)
		}
		for _, hash := range a.Stored {
			w.cache[hash] = true
		}
	case worker.Inspect:
		l := w.live(a.ID)
		l.end(len(w.history))
		l.inspected = true
		w.backgroundTasks = append(w.backgroundTasks, a)
	case scheduler.Scrub:
		a.Blocks = slices.Clone(a.Blocks)
		w.backgroundTasks = append(w.backgroundTasks, a)
	case scheduler.Save:
		w.saves = append(w.saves, a.ID)
	case worker.Stalled:
		l := w.live(a.ID)
		if !l.bare() || l.pausedAt == len(w.history) {
			w.fatalf("%d: Stalled is for bare sequences, once", a.ID)
		}
		l.pausedAt = len(w.history)
	case worker.Gone:
		w.gone(a.ID)
	case worker.OfSequence:
		w.ask(w.live(a.Sequence()), a)
	}
}

// live is a sequence that has not ended.
func (w *world) live(id scheduler.SequenceID) *sequence {
	w.t.Helper()
	l := w.sequences[id]
	if l == nil || l.gone || l.ended {
		w.fatalf("%d: something comes for it, and there is none, or it has ended: %+v", id, l)
	}
	return l
}

// end notes the event that ended a sequence in the scheduler.
func (l *sequence) end(event int) { l.overAt = cmp.Or(l.overAt, event) }

func (l *sequence) over() bool { return l.overAt > 0 }

func (l *sequence) bare() bool { return l.generate == nil && l.prefill == nil }

// heard: whoever waits for the sequence has heard how it ended.
func (l *sequence) heard() bool { return l.ended || l.bare() && (l.finished != nil || l.refused) }

func (w *world) begins(id scheduler.SequenceID, blocks []kvcache.BlockID, cachedTokens int) {
	l := w.live(id)
	if l.table != nil && !slices.Equal(l.table, blocks) {
		w.fatalf("%d: begins with blocks %v, and has %v", id, blocks, l.table)
	}
	l.table, l.cached = blocks, cachedTokens/w.config.BlockTokens
}

func (w *world) runStep(a *scheduler.RunStep) {
	if w.inFlight != nil {
		w.fatalf("a second step")
	}
	w.inFlight = a
	for i, part := range a.Parts {
		l, work := w.sequences[part.ID], a.Batch.Sequences[i]
		if l == nil || l.overAt > 0 && l.overAt < len(w.history) { // what the same event ends may be in it
			w.fatalf("%d: a step of what is over: %+v", part.ID, l)
		}
		if l.pausedAt == len(w.history) && l.last != resumed && l.last != admitted && (l.generate == nil || l.generate.Pauses) && !part.Prompt {
			w.fatalf("%d: waits, and is in the step", part.ID)
		}
		if l.table == nil || len(work.Blocks) < len(l.table) || !slices.Equal(l.table, work.Blocks[:len(l.table)]) {
			w.fatalf("%d: computes in blocks %v, and has %v", part.ID, work.Blocks, l.table)
		}
		l.table = work.Blocks
		if l.prefill != nil && !l.over() {
			if first, end := worker.Unsent(part, l.prefill.Held); first < end {
				w.offered(l, first, work.Blocks[first:end])
			}
		}
	}
}

// sampled is a token that is told.
func (w *world) sampled(a *scheduler.Sampled) {
	l := w.live(a.ID)
	if l.prefill != nil || l.generate != nil && l.last != admitted && l.last != token && l.last != paused && l.last != resumed {
		w.fatalf("%d: a token after %v", a.ID, l.last)
	}
	if a.Offset != l.offset {
		w.fatalf("%d: a token at offset %d, want %d", a.ID, a.Offset, l.offset)
	}
	l.offset++
	l.last = token
}

func (w *world) finished(a scheduler.Finished) {
	l := w.sequences[a.ID]
	if l == nil || l.gone || l.finished != nil || l.refused {
		w.fatalf("%d: a second end: %+v", a.ID, l)
	}
	if (a.NotFinite != nil) != l.inspected {
		w.fatalf("%d: inspected %v, and ends with %+v", a.ID, l.inspected, a)
	}
	for _, task := range w.backgroundTasks {
		if inspect, is := task.(worker.Inspect); is && inspect.ID == a.ID {
			w.fatalf("%d: finished before it was inspected", a.ID)
		}
	}
	l.end(len(w.history))
	l.finished = &a
}

func (w *world) refused(a scheduler.Refused) {
	l := w.sequences[a.ID]
	if l == nil || l.gone || l.finished != nil || l.refused || l.table != nil {
		w.fatalf("%d: refused too late: %+v", a.ID, l)
	}
	l.end(len(w.history))
	l.refused = true
}

func (w *world) gone(id scheduler.SequenceID) {
	l := w.sequences[id]
	switch {
	case l == nil || l.gone || !l.heard():
		w.fatalf("%d: gone before its end, or twice: %+v", id, l)
	case l.finished == nil && !l.refused:
		w.fatalf("%d: gone, and nobody counted its end", id)
	case l.transfer == opened || l.transfer == broken:
		w.fatalf("%d: gone, and its transfer is not over", id)
	case w.computes(l):
		w.fatalf("%d: gone, and a step computes it", id)
	}
	l.gone = true
}

func (w *world) computes(l *sequence) bool {
	return w.inFlight != nil && slices.ContainsFunc(w.inFlight.Parts, func(p scheduler.Part) bool { return p.ID == l.id })
}

// stepDone ends the step in flight. What is drawn for the i-th sequence is draw(i).
func (w *world) stepDone(draw func(i int) int32) {
	done := scheduler.StepDone{Compute: time.Millisecond}
	tokens, contexts := 0, 0
	for i, work := range w.inFlight.Batch.Sequences {
		tokens, contexts = tokens+len(work.Tokens), contexts+work.Start+len(work.Tokens)
		drawn := sampler.None
		if work.Sample != nil {
			drawn = draw(i)
		}
		done.Tokens = append(done.Tokens, drawn)
		done.Logprobs = append(done.Logprobs, sampler.Logprobs{Drawn: float32(-i)})
	}
	step := w.inFlight
	w.inFlight = nil
	w.handle(done)
	for i, part := range step.Parts {
		l := w.sequences[part.ID]
		decodes := !part.Prompt || step.Batch.Sequences[i].Sample != nil
		if decodes && !l.over() && !w.computes(l) && (l.bare() || l.generate.Pauses) && l.pausedAt != len(w.history) {
			w.fatalf("%d: waits, and is not told", l.id)
		}
	}
	w.handle(worker.StepTook{Work: latency.Decoding(tokens, contexts), Compute: done.Compute})
}

func (w *world) stepFails() {
	w.inFlight = nil
	w.handle(scheduler.StepDone{Err: errors.New("the device is on fire")})
}

// doBackgroundTask does the oldest task. An Inspect is answered with err.
func (w *world) doBackgroundTask(err *worker.NotFiniteError) {
	task := w.backgroundTasks[0]
	w.backgroundTasks = w.backgroundTasks[1:]
	switch a := task.(type) {
	case *scheduler.BlocksChanged:
		for _, hash := range a.Removed {
			delete(w.cache, hash)
		}
		for _, hash := range a.Stored {
			w.cache[hash] = true
		}
	case worker.Inspect:
		w.handle(worker.Inspected{ID: a.ID, Err: err})
	case scheduler.Scrub:
		w.handle(scheduler.Scrubbed(a))
	}
}

// finish lets everything that was begun come to its end, and checks that nothing is left.
func (w *world) finish() {
	for range 10_000 {
		switch {
		case w.inFlight != nil:
			w.stepDone(func(int) int32 { return 0 })
		case len(w.backgroundTasks) > 0:
			w.doBackgroundTask(nil)
		case len(w.saves) > 0:
			w.saveDone(0, scheduler.SaveDone{Saved: true})
		default:
			moves := w.moves(false)
			if len(moves) == 0 {
				w.checkNothingLeft()
				return
			}
			moves[0]()
		}
	}
	w.fatalf("no end")
}

func (w *world) saveDone(i int, done scheduler.SaveDone) {
	done.ID = w.saves[i]
	w.saves = slices.Delete(w.saves, i, i+1)
	w.handle(done)
}

func (w *world) checkNothingLeft() {
	for _, l := range w.order {
		if !l.gone {
			w.fatalf("%d: nothing happens any more, and it is not gone: %+v", l.id, l)
		}
	}
	if got := w.core.Snapshot(); len(got) != len(w.cache) || slices.ContainsFunc(got, func(h kvcache.Hash) bool { return !w.cache[h] }) {
		w.fatalf("the prefix cache is %v, and was said to be %v", got, w.cache)
	}
	if s := w.core.PoolStats(); s.Free+s.Cached != s.Total {
		w.fatalf("blocks are left: %+v", s)
	}
}
