package worker_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// dice makes choices of what a fuzzer gives.
type dice struct{ data []byte }

// below is a number below n, at most 256.
func (d *dice) below(n int) int {
	if len(d.data) == 0 {
		return 0
	}
	b := d.data[0]
	d.data = d.data[1:]
	return int(b) % n
}

// anarchy is a worker whose driver and services keep to no order.
type anarchy struct {
	t        *testing.T
	core     *worker.Worker
	now      time.Time
	known    map[scheduler.SequenceID]*fate
	inFlight *scheduler.RunStep
	scrubs   []scheduler.Scrub
}

// fate is what became of a sequence.
type fate struct {
	bare bool
	ends int // of its stream, or in the scheduler if it is bare
}

func (a *anarchy) begin(id scheduler.SequenceID, bare bool, event worker.Event) {
	if a.known[id] == nil {
		a.known[id] = &fate{bare: bare}
		a.handle(event)
		return
	}
	// An id that is known is refused, and the sequence that has it goes on.
	actions := a.core.Handle(a.now, event)
	if want := (scheduler.Refused{ID: id, Reason: scheduler.Invalid}); len(actions) != 1 || actions[0] != want {
		a.t.Fatalf("%d is known already, and another one gives %v", id, actions)
	}
}

func (a *anarchy) handle(event worker.Event) {
	for _, action := range a.core.Handle(a.now, event) {
		switch x := action.(type) {
		case *scheduler.RunStep:
			a.inFlight = x
		case scheduler.Scrub:
			a.scrubs = append(a.scrubs, x)
		case *scheduler.Sampled:
			a.follows(x.ID)
		case worker.End:
			a.follows(x.ID).ends++
		case worker.OfSequence:
			a.follows(x.Sequence())
		case scheduler.Finished:
			a.endsBare(x.ID)
		case scheduler.Refused:
			a.endsBare(x.ID)
		case worker.Gone:
			if a.known[x.ID] == nil || a.known[x.ID].ends != 1 {
				a.t.Fatalf("%d is gone, with %+v", x.ID, a.known[x.ID])
			}
			delete(a.known, x.ID)
		}
	}
	if got := a.core.Remaining(); got != len(a.known) {
		a.t.Fatalf("%d sequences remain, want %d", got, len(a.known))
	}
}

// follows is for what comes for a sequence: it may not have ended.
func (a *anarchy) follows(id scheduler.SequenceID) *fate {
	f := a.known[id]
	if f == nil || f.ends != 0 {
		a.t.Fatalf("%d: something comes for it, after %+v", id, f)
	}
	return f
}

func (a *anarchy) endsBare(id scheduler.SequenceID) {
	if f := a.known[id]; f == nil || f.bare {
		a.follows(id).ends++
	}
}

func (a *anarchy) request(d *dice, id scheduler.SequenceID) scheduler.Request {
	r := scheduler.Request{ID: id, Kind: scheduler.Kind(d.below(5)), Generated: d.below(4) - 1, MaxTokens: d.below(8), Spare: d.below(3) - 1}
	for range d.below(10) {
		r.Tokens = append(r.Tokens, int32(d.below(2)))
	}
	if d.below(2) == 0 {
		r.Stop = []int32{int32(d.below(vocabulary))}
	}
	return r
}

// any tells the worker of anything.
func (a *anarchy) any(d *dice) {
	id := scheduler.SequenceID(1 + d.below(6))
	err := status.Error([]codes.Code{codes.Canceled, codes.Internal}[d.below(2)], "over")
	switch d.below(24) {
	case 0:
		a.begin(id, false, worker.Generate{Request: a.request(d, id), Pauses: d.below(2) == 0})
	case 1:
		r := a.request(d, id)
		r.Kind = scheduler.Receive
		a.begin(id, false, worker.Generate{Request: r, Pauses: d.below(2) == 0})
	case 2:
		r := a.request(d, id)
		r.Kind = scheduler.PrefillOnly
		a.begin(id, false, worker.Prefill{Request: r, Held: d.below(6), Fetch: d.below(2) == 0})
	case 3:
		a.begin(id, false, worker.Prefill{Request: a.request(d, id), Held: d.below(6), Fetch: d.below(2) == 0})
	case 4:
		a.begin(id, true, scheduler.Submit{Request: a.request(d, id)})
	case 5:
		a.handle(worker.Reserved{ID: id})
	case 6:
		a.handle(worker.NotReserved{ID: id, Err: err})
	case 7:
		e := worker.Arrived{ID: id, Approximate: d.below(2) == 0}
		for range d.below(3) {
			e.Sampled = append(e.Sampled, int32(d.below(vocabulary+2)-1))
		}
		a.handle(e)
	case 8:
		a.handle(worker.Broke{ID: id, Err: err, Finished: d.below(2) == 0})
	case 9:
		a.handle(worker.Drained{ID: id})
	case 10:
		a.handle(worker.Opened{ID: id})
	case 11:
		a.handle(worker.NotOpened{ID: id, Err: err})
	case 12:
		a.handle(worker.Fetched{ID: id, From: d.below(4), Until: d.below(4)})
	case 13:
		if d.below(2) == 0 {
			err = nil
		}
		a.handle(worker.Sent{ID: id, Err: err})
	case 14:
		a.handle(worker.Cancel{ID: id, Err: err})
	case 15:
		a.handle(worker.Inspected{ID: id, Err: []*worker.NotFiniteError{nil, {NotFiniteError: &engine.NotFiniteError{}}}[d.below(2)]})
	case 16:
		a.handle(scheduler.Cancel{ID: id})
	case 17:
		a.handle(scheduler.TransferDone{ID: id})
	case 18:
		a.handle(scheduler.KVArrived{ID: id, Sampled: []int32{1, 2}[:d.below(3)]})
	case 19:
		a.rarely(d)
	default:
		done := scheduler.StepDone{Compute: time.Millisecond}
		if d.below(16) == 0 {
			done.Err = errors.New("the device is on fire")
		}
		n := d.below(4) // the right number, more likely than not
		if a.inFlight != nil && n < 3 {
			n = len(a.inFlight.Parts)
		}
		for range n {
			done.Tokens = append(done.Tokens, int32(d.below(vocabulary+1)-1))
			done.Logprobs = append(done.Logprobs, sampler.Logprobs{})
		}
		a.inFlight = nil
		a.handle(done)
	}
}

func (a *anarchy) rarely(d *dice) {
	switch d.below(8) {
	case 0:
		a.handle(worker.CancelAll{})
	case 1:
		a.handle(scheduler.Drain{})
	case 2:
		a.handle(scheduler.Undrain{})
	case 3:
		a.handle(scheduler.SaveLimit{Saves: d.below(3)})
	case 4:
		a.handle(scheduler.SaveDone{ID: scheduler.SaveID(d.below(4)), Saved: d.below(2) == 0})
	case 5:
		a.handle(worker.StepTook{Work: latency.Decoding(d.below(4), d.below(8)), Compute: time.Millisecond})
	case 6:
		a.handle("what is no event")
	case 7:
		a.scrub()
	}
}

func (a *anarchy) scrub() {
	if len(a.scrubs) > 0 {
		scrub := a.scrubs[0]
		a.scrubs = a.scrubs[1:]
		a.handle(scheduler.Scrubbed(scrub))
	}
}

// finish answers all that may have been asked, until nothing is left.
func (a *anarchy) finish() {
	err := status.Error(codes.Canceled, "over")
	for range 4 {
		for id := scheduler.SequenceID(1); id <= 6; id++ {
			for _, event := range []worker.Event{
				worker.Cancel{ID: id, Err: err}, scheduler.Cancel{ID: id}, worker.Inspected{ID: id},
				worker.Reserved{ID: id}, worker.Broke{ID: id, Err: err}, worker.Drained{ID: id},
				worker.Opened{ID: id}, worker.Fetched{ID: id}, worker.Sent{ID: id, Err: err},
				scheduler.TransferDone{ID: id},
			} {
				a.handle(event)
			}
		}
		a.inFlight = nil
		a.handle(scheduler.StepDone{Err: errors.New("over")})
	}
	for id := range scheduler.SaveID(1000) {
		a.handle(scheduler.SaveDone{ID: id})
	}
	for len(a.scrubs) > 0 {
		a.scrub()
	}
	if a.core.Remaining() != 0 || a.core.Transfers() != 0 {
		a.t.Fatalf("%d sequences and %d transfers are left", a.core.Remaining(), a.core.Transfers())
	}
	if s := a.core.PoolStats(); s.Free+s.Cached != s.Total || s.Misuses != 0 {
		a.t.Fatalf("blocks are left: %+v", s)
	}
}

// FuzzEvents tells a worker of anything in any order, also of what no driver would. Each
// sequence ends once all the same, and once all has been answered nothing is left.
func FuzzEvents(f *testing.F) {
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 0))
		data := make([]byte, 1000)
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d := &dice{data}
		core, err := worker.New(worker.Config{VocabSize: vocabulary, Blocks: 4 + d.below(8), ModelDigest: "model", ArithmeticClass: "class", Scheduler: scheduler.Config{
			BlockTokens: 2, ContextTokens: 14, MaxBatchTokens: 2 + d.below(6), MaxSequences: 1 + d.below(3), ChunkTokens: 2 + 2*d.below(2),
			MaxWaiting: 1 + d.below(4),
		}})
		if err != nil {
			t.Fatal(err)
		}
		a := &anarchy{t: t, core: core, now: time.Unix(1000, 0), known: map[scheduler.SequenceID]*fate{}}
		for len(d.data) > 0 {
			a.any(d)
		}
		a.finish()
	})
}
