package worker_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// newWorker is one with blocks of one token, which computes a sequence at a time.
func newWorker(t *testing.T, blocks int) *worker.Worker {
	t.Helper()
	w, err := worker.New(worker.Config{VocabSize: vocabulary, Blocks: blocks, ModelDigest: "model", ArithmeticClass: "class", Scheduler: scheduler.Config{
		BlockTokens: 1, ContextTokens: 10,
		MaxBatchTokens: 4, MaxSequences: 1, ChunkTokens: 4, MaxWaiting: 8,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// summary names the actions of a worker, but for the scheduler's own.
func summary(actions []worker.Action) string {
	var names []string
	for _, action := range actions {
		name := fmt.Sprintf("%T", action)
		name = name[strings.LastIndex(name, ".")+1:]
		switch a := action.(type) {
		case worker.SendDecode:
			name = fmt.Sprintf("%T", a.Event.GetEvent())
		case worker.SendPrefill:
			name = fmt.Sprintf("%T", a.Event.GetEvent())
		case worker.End:
			name = "End " + status.Code(a.Err).String()
		case worker.Abort:
			name = "Abort " + strings.TrimPrefix(a.Reason.String(), "ABORT_REASON_")
		case *scheduler.Sampled:
			name = fmt.Sprintf("token %d", a.Offset)
		case *scheduler.RunStep, scheduler.Scrub:
		case scheduler.Action:
			continue
		}
		names = append(names, name[strings.LastIndex(name, "_")+1:])
	}
	return strings.Join(names, ", ")
}

// row is one of a table: what a worker does on the last of some events.
type row struct {
	state  string
	events []worker.Event
	want   string
}

func run(t *testing.T, rows []row) {
	for _, r := range rows {
		last := fmt.Sprintf("%T", r.events[len(r.events)-1])
		t.Run(r.state+"/"+last[strings.LastIndex(last, ".")+1:], func(t *testing.T) {
			w := newWorker(t, 10)
			got := ""
			for _, e := range r.events {
				got = summary(w.Handle(time.Unix(1000, 0), e))
			}
			if got != r.want {
				t.Errorf("%q, want %q", got, r.want)
			}
		})
	}
}

// after is what happens after the events that lead to a state.
func after(state []worker.Event, events ...worker.Event) []worker.Event {
	return slices.Concat(state, events)
}

// step is the end of one that drew a token for its only sequence.
func step(token int32) worker.Event {
	return scheduler.StepDone{Tokens: []int32{token}, Compute: time.Millisecond}
}

var (
	request = scheduler.Request{ID: 1, Tokens: []int32{0, 1}, MaxTokens: 3, Stop: []int32{4}}
	cancel  = worker.Cancel{ID: 1, Err: status.Error(codes.Canceled, "the client went away")}
	drained = worker.Drained{ID: 1}
	broke   = worker.Broke{ID: 1, Err: errBroken}
	found   = worker.Inspected{ID: 1, Err: &worker.NotFiniteError{NotFiniteError: &engine.NotFiniteError{}}}
	failed  = scheduler.StepDone{Err: errors.New("the device is on fire")}
)

func arrived(token int32) worker.Event { return worker.Arrived{ID: 1, Sampled: []int32{token}} }

func ofKind(kind scheduler.Kind) scheduler.Request {
	r := request
	r.Kind = kind
	return r
}

// The life of a sequence on a decode worker.
func TestGeneration(t *testing.T) {
	asked := []worker.Event{worker.Generate{Request: ofKind(scheduler.Receive)}}
	ending := after(asked, cancel)
	writable := after(asked, worker.Reserved{ID: 1})
	given := after(writable, cancel)
	running := after(writable, arrived(0))
	spoilt := after(running, step(sampler.None))
	full := worker.Generate{Request: ofKind(scheduler.Full)}
	run(t, []row{
		{"new", asked, "ReserveKV"},
		{"new, prefilled here", []worker.Event{full}, "Admitted, RunStep"},
		{"new, while the worker drains", []worker.Event{scheduler.Drain{}, full}, "End Unavailable, Gone"},

		{"ReserveKV is not answered", after(asked, worker.Reserved{ID: 1}), "Reserved"},
		{"ReserveKV is not answered", after(asked, worker.NotReserved{ID: 1, Err: status.Error(codes.ResourceExhausted, "full")}), "End ResourceExhausted, Gone"},
		{"ReserveKV is not answered", after(asked, broke), "End Unavailable"},
		{"ReserveKV is not answered", ending, ""},
		{"cancelled before ReserveKV is answered", after(ending, worker.Reserved{ID: 1}), "CancelKV, End Canceled"},
		{"cancelled before ReserveKV is answered", after(ending, worker.NotReserved{ID: 1}), "End Canceled, Gone"},
		{"cancelled before ReserveKV is answered", after(ending, broke), "End Canceled"},

		{"a sender may write", running, "Admitted, RunStep"},
		{"a sender may write; its token is the last", after(writable, arrived(4)), "Ended, End OK, Gone"},
		{"a sender may write; its token is none", after(writable, arrived(vocabulary)), "End Unavailable, Gone"},
		{"a sender may write", after(writable, broke), "End Unavailable"},
		{"a sender may write; the first token was the last", after(writable, worker.Broke{ID: 1, Err: errBroken, Finished: true}), "End Canceled"},
		{"a sender may write", given, "CancelKV, End Canceled"},
		{"a sender may write", after(writable, worker.CancelAll{}), "CancelKV, End Unavailable"},
		{"the transfer was cancelled", after(given, drained), "Gone"},
		{"the transfer was cancelled", after(given, arrived(0)), "Gone"},
		{"the transfer was cancelled", after(given, broke), ""},
		{"the transfer broke", after(writable, broke, drained), "Gone"},
		{"the transfer broke before Reserved", after(asked, broke, drained), "Gone"},
		{"the transfer broke before Reserved", after(asked, broke, worker.Reserved{ID: 1}), ""},

		{"decodes", after(running, step(0)), "token 1, RunStep"},
		{"decodes its last token", after(running, step(4)), "token 1, Ended, End OK, Gone"},
		{"decodes", after(running, failed), "End Unavailable, Gone"},
		{"decodes", after(running, cancel), "End Canceled"},
		{"cancelled, and in a step", after(running, cancel, step(0)), "Gone"},
		{"decodes; its logits are not finite", spoilt, "Inspect, Scrub"},
		{"is inspected", after(spoilt, found), "End DataLoss, Gone"},
		{"is inspected", after(spoilt, cancel), "End Canceled"},
		{"is inspected, and cancelled", after(spoilt, cancel, found), "Gone"},
	})
}

// The life of a sequence on a prefill worker.
func TestPrefill(t *testing.T) {
	opened := worker.Opened{ID: 1}
	sentWell, sentNot := worker.Sent{ID: 1}, worker.Sent{ID: 1, Err: errBroken}
	opening := []worker.Event{worker.Prefill{Request: ofKind(scheduler.PrefillOnly)}}
	computing := after(opening, opened)
	committing := after(computing, step(0))
	last := after(computing, step(4))
	fetching := []worker.Event{worker.Prefill{Request: ofKind(scheduler.PrefillOnly), Fetch: true}, opened}
	spoilt := after(computing, step(sampler.None))
	another := ofKind(scheduler.PrefillOnly)
	another.ID = 100
	var full []worker.Event // as many as may wait have transfers that do not open
	for id := range scheduler.SequenceID(8) {
		r := ofKind(scheduler.PrefillOnly)
		r.ID = id + 1
		full = append(full, worker.Prefill{Request: r})
	}
	run(t, []row{
		{"new", opening, "OpenTransfer"},
		{"new, while the worker drains", after([]worker.Event{scheduler.Drain{}}, opening...), "End Unavailable, Gone"},

		{"new, while too many wait for their transfers", after(full, worker.Prefill{Request: another}), "End ResourceExhausted, Gone"},
		{"new, when one of them has begun", after(full, opened, worker.Prefill{Request: another}), "OpenTransfer"},
		{"new, when one of them has none", after(full, worker.NotOpened{ID: 1}, worker.Prefill{Request: another}), "OpenTransfer"},

		{"OpenTransfer is not answered", computing, "Started, RunStep"},
		{"OpenTransfer is not answered, and the worker drains", after(opening, scheduler.Drain{}, opened), "Started, RunStep"},
		{"OpenTransfer is not answered", after(opening, worker.NotOpened{ID: 1, Err: status.Error(codes.Unavailable, "refused")}), "End Unavailable, Gone"},
		{"OpenTransfer is not answered", after(opening, cancel), ""},
		{"cancelled before OpenTransfer is answered", after(opening, cancel, opened), "Abort CANCELLED"},
		{"cancelled before OpenTransfer is answered", after(opening, cancel, worker.NotOpened{ID: 1}), "End Canceled, Gone"},
		{"OpenTransfer is not answered; a store may have more", fetching, "Fetch"},

		{"Fetch is not answered", after(fetching, worker.Fetched{ID: 1}), "Started, RunStep"},
		{"Fetch is not answered, and the worker drains", after(fetching, scheduler.Drain{}, worker.Fetched{ID: 1}), "Started, RunStep"},
		{"Fetch is not answered", after(fetching, cancel), "Abort CANCELLED"},
		{"Fetch is not answered", after(fetching, sentNot), ""},
		{"the transfer has ended, and Fetch is not answered", after(fetching, sentNot, worker.Fetched{ID: 1}), "End Unavailable, Gone"},
		{"cancelled, and Fetch is not answered", after(fetching, cancel, worker.Fetched{ID: 1}), ""},
		{"cancelled before it was submitted", after(fetching, cancel, worker.Fetched{ID: 1}, sentNot), "End Canceled, Gone"},

		{"computes", committing, "FirstToken, Commit"},
		{"computes; the first token is the last", last, "FirstToken, Abort FINISHED"},
		{"computes", after(computing, failed), "Abort FAILED"},
		{"computes", after(computing, cancel), "Abort CANCELLED"},
		{"computes", after(computing, worker.CancelAll{}), "Abort FAILED"},
		{"computes", after(computing, sentNot), "End Unavailable"},
		{"the transfer has ended, and a step computes it", after(computing, sentNot, step(0)), "Gone"},
		{"cancelled, and a step computes it", after(computing, cancel, sentNot), "End Canceled"},
		{"computes; its logits are not finite", spoilt, "Inspect"},
		{"is inspected", after(spoilt, found), "Abort FAILED"},

		{"Commit is out", after(committing, sentWell), "Sent, End OK, Gone"},
		{"Commit is out", after(committing, sentNot), "End Unavailable, Gone"},
		{"Commit is out", after(committing, cancel), "Abort CANCELLED"},
		{"the first token was the last", after(last, sentNot), "Sent, End OK, Gone"},
		{"the first token was the last", after(last, cancel), ""},
	})
}

// All changes of the prefix cache are told, also where one event has several.
func TestChangesOfOneEvent(t *testing.T) {
	w := newWorker(t, 6)
	cache := map[kvcache.Hash]bool{}
	changes := 0
	handle := func(event worker.Event) {
		changes = 0
		for _, action := range w.Handle(time.Unix(1000, 0), event) {
			if changed, is := action.(*scheduler.BlocksChanged); is {
				changes++
				for _, hash := range changed.Removed {
					delete(cache, hash)
				}
				for _, hash := range changed.Stored {
					cache[hash] = true
				}
			}
		}
	}
	receive := func(id scheduler.SequenceID, maxTokens int, tokens ...int32) worker.Event {
		return scheduler.Submit{Request: scheduler.Request{ID: id, Kind: scheduler.Receive, Tokens: tokens, MaxTokens: maxTokens}}
	}
	// One computes, two with KV wait for its place, and two for blocks: of each of those that
	// end, one of the latter gets the blocks.
	handle(scheduler.Submit{Request: scheduler.Request{ID: 5, Tokens: []int32{0}, MaxTokens: 1}})
	for id := scheduler.SequenceID(3); id <= 4; id++ {
		handle(receive(id, 2, int32(id)))
		handle(scheduler.KVArrived{ID: id, Sampled: []int32{0}})
	}
	handle(receive(1, 1, 1, 1, 1))
	handle(receive(2, 1, 2, 2))
	handle(worker.CancelAll{})
	if changes != 2 {
		t.Errorf("%d changes of the prefix cache, want 2", changes)
	}
	if got := w.Snapshot(); len(got) != len(cache) {
		t.Errorf("the prefix cache is %v, and was said to be %v", got, cache)
	}
}
