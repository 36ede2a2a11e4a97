package scheduler_test

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// crowded is a world of few blocks, in which little output is expected.
func crowded(t *testing.T, blocks int) *world {
	return newWorld(t, blocks, scheduler.Config{
		BlockTokens: 2, ContextTokens: 40, MaxBatchTokens: 64, MaxSequences: 16, ChunkTokens: 16, MaxWaiting: 16, OutputShare: 0.01,
	})
}

// TestMoreRequestsThanBlocks: all end, with the tokens that they would have given
// alone, and the first to come is never the one that gives way.
func TestMoreRequestsThanBlocks(t *testing.T) {
	for _, kind := range []scheduler.Kind{scheduler.Full, scheduler.Receive} {
		w := crowded(t, 12)
		var lives []*life
		for i := range 8 {
			l := w.submit(scheduler.Request{ID: scheduler.SequenceID(i + 1), Kind: kind, Tokens: []int32{int32(i), 1, 2}, MaxTokens: 18})
			lives = append(lives, l)
			if l.reserved {
				w.arrive(l, 1)
			}
		}
		for w.inFlight != nil {
			w.finishStep(time.Millisecond)
			for _, l := range lives {
				if l.reserved && !l.arrived {
					w.arrive(l, 1)
				}
			}
		}
		w.finishAll()
		if w.preemptions == 0 || lives[0].preempted {
			t.Errorf("kind %d: %d preemptions, of the first: %v", kind, w.preemptions, lives[0].preempted)
		}
		for _, l := range lives {
			if l.finished == nil || l.finished.Reason != scheduler.Length || len(l.output) != 18 {
				t.Errorf("kind %d: %d ended with %+v after %d tokens", kind, l.request.ID, l.finished, len(l.output))
			}
		}
	}
}

// TestPriorityKeepsBlocks: who is least urgent gives way, whenever it came.
func TestPriorityKeepsBlocks(t *testing.T) {
	w := crowded(t, 12)
	first := w.submit(scheduler.Request{ID: 1, Tokens: []int32{9, 1, 2}, MaxTokens: 18, Priority: -1})
	for i := range 3 {
		w.submit(scheduler.Request{ID: scheduler.SequenceID(i + 2), Tokens: []int32{int32(i), 1, 2}, MaxTokens: 18})
	}
	for w.preemptions == 0 {
		w.finishStep(time.Millisecond)
	}
	if !first.preempted {
		t.Error("one of higher priority gave way")
	}
	w.finishAll()
}

// TestOneAloneIsNeverPreempted, though it fills the pool.
func TestOneAloneIsNeverPreempted(t *testing.T) {
	w := crowded(t, 10)
	l := w.submit(scheduler.Request{ID: 1, Tokens: []int32{1, 2, 3}, MaxTokens: 18})
	w.finishAll()
	if w.preemptions != 0 || l.finished.Reason != scheduler.Length {
		t.Errorf("%d preemptions, %+v", w.preemptions, l.finished)
	}
}

// TestEverythingIsExpectedAtFirst: until a sequence has shown that less comes, each
// has room for all that it may generate.
func TestEverythingIsExpectedAtFirst(t *testing.T) {
	running := func(share float64) int {
		w := newWorld(t, 20, scheduler.Config{
			BlockTokens: 2, ContextTokens: 40, MaxBatchTokens: 64, MaxSequences: 16, ChunkTokens: 32, MaxWaiting: 16, OutputShare: share,
		})
		for i := range 8 {
			w.submit(scheduler.Request{ID: scheduler.SequenceID(i + 1), Tokens: []int32{int32(i), 1, 2}, MaxTokens: 18})
		}
		w.finishStep(time.Millisecond)
		n := w.scheduler.Load().RunningSequences
		w.finishAll()
		return n
	}
	if n := running(0); n != 2 { // of 10 blocks each
		t.Errorf("%d run", n)
	}
	if n := running(0.3); n != 4 { // of 2 at first, and 3 more in all
		t.Errorf("%d run where a third is expected", n)
	}
}

// TestForecastIsLearned: after many have ended early, more run at a time.
func TestForecastIsLearned(t *testing.T) {
	w := newWorld(t, 20, scheduler.Config{
		BlockTokens: 2, ContextTokens: 40, MaxBatchTokens: 64, MaxSequences: 16, ChunkTokens: 32, MaxWaiting: 16,
	})
	stop := make([]int32, vocabulary)
	for i := range stop {
		stop[i] = int32(i)
	}
	id := scheduler.SequenceID(0)
	for range 40 {
		id++
		w.submit(scheduler.Request{ID: id, Tokens: []int32{1, 2, 3}, MaxTokens: 18, Stop: stop})
		w.finishStep(time.Millisecond)
	}
	for i := range 8 {
		id++
		w.submit(scheduler.Request{ID: id, Tokens: []int32{int32(i), 1, 2}, MaxTokens: 18})
	}
	w.finishStep(time.Millisecond)
	if n := w.scheduler.Load().RunningSequences; n < 4 {
		t.Errorf("%d run", n)
	}
	w.finishAll()
}

// TestOneTokenTeachesNothing: requests that may generate one token, as for embeddings, do not say
// how much of its output another one generates.
func TestOneTokenTeachesNothing(t *testing.T) {
	w := crowded(t, 20)
	id := scheduler.SequenceID(0)
	for range 100 {
		id++
		w.submit(scheduler.Request{ID: id, Tokens: []int32{1, 2, 3}, MaxTokens: 1})
		w.finishStep(time.Millisecond)
	}
	for i := range 8 {
		id++
		w.submit(scheduler.Request{ID: id, Tokens: []int32{int32(i), 1, 2}, MaxTokens: 18})
	}
	w.finishStep(time.Millisecond)
	if n := w.scheduler.Load().RunningSequences; n != 6 { // of 3 blocks each
		t.Errorf("%d run", n)
	}
	w.finishAll()
}

// TestArrivedIsNotStarved: one whose long prompt has arrived joins the batch before
// short ones that came later.
func TestArrivedIsNotStarved(t *testing.T) {
	w := newWorld(t, 400, scheduler.Config{
		BlockTokens: 2, ContextTokens: 200, MaxBatchTokens: 64, MaxSequences: 2, ChunkTokens: 16, MaxWaiting: 64,
	})
	id := 0
	receive := func(n int) *life {
		id++
		l := w.submit(scheduler.Request{ID: scheduler.SequenceID(id), Kind: scheduler.Receive, Tokens: long(n, id), MaxTokens: 4, Stop: never})
		w.arrive(l, 1)
		return l
	}
	for range 3 {
		receive(3)
	}
	big := receive(100)
	for range 6 {
		receive(3)
		w.finishStep(time.Millisecond)
	}
	if !big.started {
		t.Error("it waits behind short ones")
	}
	w.finishAll()
}

// TestNobodyGivesWayForAPlaceThatIsFree: one that waits for a block keeps what it has
// when another's KV arrives, as long as there are places for both.
func TestNobodyGivesWayForAPlaceThatIsFree(t *testing.T) {
	w := crowded(t, 8)
	a := w.submit(scheduler.Request{ID: 1, Kind: scheduler.Receive, Tokens: []int32{5, 1, 2, 3, 4, 5, 6, 7}, MaxTokens: 2, Stop: never})
	b := w.submit(scheduler.Request{ID: 2, Tokens: []int32{1, 1, 2}, MaxTokens: 9, Stop: never})
	for w.inFlight != nil {
		w.finishStep(time.Millisecond)
	}
	if b.finished != nil {
		t.Fatal("there is room for both: the test shows nothing")
	}
	w.arrive(a, 1)
	w.finishAll()
	if w.preemptions != 0 {
		t.Errorf("%d preemptions", w.preemptions)
	}
}
