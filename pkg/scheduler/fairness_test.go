package scheduler_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/scheduler"
)

func TestOrderOfTheQueue(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	config := standard
	config.MaxSequences, config.MaxWaiting = 1, 10
	w := newWorld(t, 30, config)
	for _, r := range []scheduler.Request{
		{ID: 1}, // runs at once
		{ID: 2},
		{ID: 3, Deadline: at(9000)},
		{ID: 4, Deadline: at(8000)},
		{ID: 5, Priority: 1},
		{ID: 6, Priority: -1, Deadline: at(1)},
	} {
		r.Tokens, r.MaxTokens = prompt(5), 2
		w.submit(r)
	}
	var order []scheduler.SequenceID
	for w.inFlight != nil {
		order = append(order, w.inFlight.Parts[0].ID)
		w.finishStep(time.Millisecond)
	}
	// 2 was overtaken three times, as often as allowed, by 5, 4 and 3.
	if want := []scheduler.SequenceID{1, 5, 4, 3, 2, 6}; !slices.Equal(slices.Compact(order), want) {
		t.Errorf("%v, want %v", slices.Compact(order), want)
	}
}

// A stream of small urgent requests must not starve a large one.
func TestLargeIsNotStarved(t *testing.T) {
	w := newWorld(t, 10, standard)
	id := scheduler.SequenceID(1)
	small := func() {
		id++
		w.submit(scheduler.Request{ID: id, Tokens: prompt(9), MaxTokens: 4, Priority: 5, Salt: strconv.Itoa(int(id)), Stop: never})
	}
	small()
	small()
	large := w.submit(scheduler.Request{ID: 1, Tokens: prompt(30), MaxTokens: 10, Stop: never})
	for range 60 {
		if large.started {
			break
		}
		small()
		w.finishStep(time.Millisecond)
	}
	if !large.started {
		t.Fatal("60 steps, and the large request did not start")
	}
	w.finishAll()
}

// Sequences whose KV is there wait for a place behind no more than MaxOvertakes that came later,
// whatever those ask for. The world checks it.
func TestArrivedIsNotOvertakenForEver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := standard
		config.MaxSequences = rapid.IntRange(1, 2).Draw(t, "sequences")
		config.MaxOvertakes = rapid.IntRange(1, 3).Draw(t, "overtakes")
		w := newWorld(t, 100, config)
		for id := range scheduler.SequenceID(30) {
			l := w.submit(scheduler.Request{
				ID: id, Kind: scheduler.Receive, Tokens: prompt(5), MaxTokens: 2, Salt: strconv.Itoa(int(id)), Stop: never,
				Priority: rapid.Int32Range(0, 1).Draw(t, "priority"),
				FirstIn:  rapid.SampledFrom([]time.Duration{0, time.Second}).Draw(t, "first in"),
			})
			if l.reserved {
				w.arrive(l, 1)
			}
			if rapid.Bool().Draw(t, "step") {
				w.finishStep(time.Millisecond)
			}
		}
		w.finishAll()
	})
}

// A stream of urgent prompts must not starve one that runs.
func TestRunningPromptIsNotStarved(t *testing.T) {
	config := standard
	config.MaxOvertakes = 1000
	w := newWorld(t, 60, config)
	slow := w.submit(scheduler.Request{ID: 1, Tokens: prompt(36), MaxTokens: 2, Stop: never})
	for id := scheduler.SequenceID(2); id < 200 && slow.finished == nil; id++ {
		w.submit(scheduler.Request{
			ID: id, Tokens: prompt(16), MaxTokens: 1, Priority: 5, Salt: strconv.Itoa(int(id)), Stop: never,
		})
		w.finishStep(time.Millisecond)
	}
	if slow.finished == nil {
		t.Fatalf("%d of %d tokens after %d steps", slow.computed, 36, w.steps)
	}
	w.finishAll()
}

// While one long prompt after the other comes, those that decode get a token
// every step.
func TestDecodesAreNotStalled(t *testing.T) {
	w := newWorld(t, 60, standard)
	l := w.submit(scheduler.Request{ID: 1, Tokens: prompt(4), MaxTokens: 30, Stop: never})
	w.finishStep(time.Millisecond)
	for id := scheduler.SequenceID(2); l.finished == nil; id++ {
		w.submit(scheduler.Request{ID: id, Tokens: prompt(30), MaxTokens: 3, Salt: strconv.Itoa(int(id))})
		had := len(l.output)
		w.finishStep(time.Millisecond)
		if len(l.output) != had+1 {
			t.Fatal("a step without its token")
		}
	}
	w.finishAll()
}
