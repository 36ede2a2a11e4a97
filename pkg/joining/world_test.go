package joining_test

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker/workertest"
)

const (
	stopToken = 99
	// What prefill workers have of any prompt, and from a store.
	cachedTokens, fetchedTokens = 3, 2
)

// token is what every worker draws at an offset.
func token(offset, length int) int32 {
	if offset+1 == length {
		return stopToken
	}
	return int32(offset % 50)
}

// words is a Text that ends after some tokens, as if a stop text were found.
type words struct{ pushed, stopAfter int }

func (w *words) Push(token int32) (string, string) {
	w.pushed++
	if w.pushed == w.stopAfter {
		return "", "STOP"
	}
	return fmt.Sprint(token, " "), ""
}

func (w *words) Flush() (string, string) { return "tail", "" }

// world is the workers, the policy and the client of one request. Its workers
// are honest; when they do something, and whether they live to do it, is drawn.
type world struct {
	t      *rapid.T
	join   *joining.Join
	now    time.Time
	length int // of the natural answer, stop token included
	max    int // max_tokens
	epoch  uint64
	stopAt int
	chaos  bool    // workers also break the protocol
	top    *uint32 // likeliest tokens asked for
	liar   string  // id of a worker that lies; "": none does

	asked     *joining.Ask
	open      map[joining.Stream]*stream
	attempts  map[int]*tryState
	delivered []int32
	accepted  bool
	finish    *joining.Finish
	openings  int
	fetched   int
	released  map[int]int
	hedge     int  // the second of two attempts; 0: there was none
	beside    bool // and both run
}

// stream is the far end of a stream: the messages it will send.
type stream struct {
	script []joining.Event
	end    error
	done   bool // end was sent
}

type tryState struct {
	disaggregated, committed bool
	epoch                    uint64 // of its workers
}

func newWorld(t *rapid.T) *world {
	w := &world{
		t: t, now: time.Unix(1000, 0), open: map[joining.Stream]*stream{}, attempts: map[int]*tryState{}, released: map[int]int{},
		length: rapid.IntRange(1, 8).Draw(t, "length"), max: rapid.IntRange(1, 8).Draw(t, "max"),
		stopAt: rapid.IntRange(0, 10).Draw(t, "stopAt"), chaos: rapid.Bool().Draw(t, "chaos"),
	}
	if rapid.Bool().Draw(t, "logprobs") {
		w.top = new(rapid.Uint32Range(0, 3).Draw(t, "top"))
	}
	w.join = joining.New(joining.Params{
		Logprobs: w.top != nil, TopLogprobs: 3,
		Arrived: w.now, Tokenized: w.now.Add(time.Microsecond), PromptTokens: 5, MaxTokens: w.max, StopTokens: []int32{stopToken},
		Text: &words{stopAfter: w.stopAt}, MaxAttempts: 3, MaxRefusals: 4, Linger: time.Second,
		Silence: routing.Silence{Queue: 30 * time.Second, Prompt: 60 * time.Second, Tokens: 10 * time.Second},
	})
	return w
}

func (w *world) last(offset int) (bool, inferencev1.FinishReason) {
	switch {
	case offset+1 == w.length:
		return true, inferencev1.FinishReason_FINISH_REASON_STOP
	case offset+1 >= w.max:
		return true, inferencev1.FinishReason_FINISH_REASON_LENGTH
	}
	return false, 0
}

func (w *world) send(event joining.Event) {
	w.now = w.now.Add(time.Duration(rapid.IntRange(0, 300).Draw(w.t, "ms")) * time.Millisecond)
	actions := []joining.Action(nil)
	if m, is := event.(joining.DecodeMessage); is && rapid.Bool().Draw(w.t, "hot") {
		actions = w.join.HandleDecode(w.now, m)
	} else {
		actions = w.join.Handle(w.now, event)
	}
	for _, action := range actions {
		w.take(action)
	}
	if rapid.IntRange(0, 3).Draw(w.t, "due") == 0 {
		w.checkDue()
	}
}

// checkDue: a tick is never due later than is said once the life is looked at anew, which any
// event makes it do.
func (w *world) checkDue() {
	before, wanted := w.join.Next()
	if actions := w.join.Handle(w.now, joining.Refused{Attempt: -1}); len(actions) > 0 {
		w.t.Fatalf("%v for a refusal of nothing", actions)
	}
	if due, wants := w.join.Next(); wants && (!wanted || before.After(due)) {
		w.t.Fatalf("a tick is due at %v, Next said %v, %v", due, before, wanted)
	}
}

func (w *world) take(action joining.Action) {
	if w.finish != nil {
		switch action.(type) {
		case joining.Close, joining.Release, joining.Tell:
		default:
			w.t.Fatalf("%T after Finish", action)
		}
	}
	switch a := action.(type) {
	case joining.Ask:
		if w.asked != nil {
			w.t.Fatal("asked twice")
		}
		if !slices.Equal(a.Generated, w.delivered) {
			w.t.Fatalf("asks with %v, delivered %v", a.Generated, w.delivered)
		}
		if a.Retry && a.Attempt == 0 {
			w.t.Fatalf("the first attempt is a retry: %+v", a)
		}
		w.asked = &a
	case joining.AskHedge:
		w.askedHedge(a)
	case joining.Withdraw:
		if w.asked == nil {
			w.t.Fatal("withdraws nothing")
		}
		w.asked = nil
	case joining.OpenDecode:
		w.openings++
		w.open[a.Stream] = &stream{script: w.decodeScript(a.Stream.Attempt, len(a.Generated), a.PrefillHere)}
		if a.Worker.ID == w.liar {
			w.lie(a.Stream.Attempt, joining.Decode)
		}
	case joining.OpenPrefill:
		w.openings++
		if a.Source.GetWorkerId() != "s" || a.Source.GetEpoch() != w.attempts[a.Stream.Attempt].epoch {
			w.t.Fatalf("told of %v", a.Source)
		}
		w.open[a.Stream] = &stream{script: w.prefillScript(a.Stream.Attempt, len(a.Generated))}
		if a.Worker.ID == w.liar {
			w.lie(a.Stream.Attempt, joining.Prefill)
		}
	case joining.Tell:
		fetched, is := a.Event.(routing.Fetched)
		if !is {
			break
		}
		if fetched != (routing.Fetched{
			Store: routing.Ref{ID: "s", Epoch: fetched.Worker.Epoch}, Worker: fetched.Worker,
			Verdict: workerv1.FetchVerdict_FETCH_VERDICT_GIVEN, Tokens: fetchedTokens, Took: 20 * time.Millisecond,
		}) {
			w.t.Fatalf("fetched %v", fetched)
		}
		w.fetched++
	case joining.Close:
		s := w.open[a.Stream]
		if s == nil || s.done {
			w.t.Fatal("closes a stream that is not open")
		}
		s.script, s.end = nil, status.Error(codes.Canceled, "cancelled")
	case joining.CheckProgress:
		at := w.now.Add(-time.Duration(rapid.IntRange(0, 20).Draw(w.t, "progressed before")) * time.Second)
		for _, action := range w.join.Handle(w.now, joining.Progressed{Stream: a.Stream, At: at}) {
			w.take(action)
		}
	case joining.Release:
		w.released[a.Attempt]++
		if want := w.join.ID(a.Attempt == w.hedge && w.hedge > 0); a.ID != want || a.Hedge != (w.hedge > 0 && a.Attempt == w.hedge) || a.Computed > 0 && !a.Lost {
			w.t.Fatalf("%+v, want id %q; the second attempt is %d", a, want, w.hedge)
		}
		if w.beside = w.beside && !a.Beside; a.Lost && len(w.delivered) > 0 {
			w.t.Fatalf("%+v after the first token", a)
		}
	case joining.Accept:
		if w.accepted {
			w.t.Fatal("accepted twice")
		}
		w.accepted = true
	case *joining.Deliver:
		if !w.accepted {
			w.t.Fatal("delivered before Accept")
		}
		if a.Offset != len(w.delivered) || a.Token != token(a.Offset, w.length) {
			w.t.Fatalf("delivered %d at %d after %v", a.Token, a.Offset, w.delivered)
		}
		if want := workertest.Logprobs(w.top, uint32(a.Token), a.Offset); !proto.Equal(a.Logprobs, want) {
			w.t.Fatalf("delivered %d at %d with %v, want %v", a.Token, a.Offset, a.Logprobs, want)
		}
		if w.beside {
			w.t.Fatal("a token while two attempts run")
		}
		w.delivered = append(w.delivered, a.Token)
	case joining.Finish:
		if w.finish = &a; w.asked != nil {
			w.t.Fatal("finished while an ask is on")
		}
		w.checkFinish(&a)
	}
}

func (w *world) checkFinish(f *joining.Finish) {
	if f.Err != nil {
		return
	}
	m := f.Timings
	var sum time.Duration
	for _, took := range api.StagesOf(m) {
		if took < 0 {
			w.t.Fatalf("negative stage: %v", m)
		}
		sum += took
	}
	if m.GetFetchNs() < 0 || m.GetFetchNs() > m.GetPrefillNs() {
		w.t.Fatalf("fetching is no part of prefill: %v", m)
	}
	if f.Route.GetMode() == inferencev1.Mode_MODE_DISAGGREGATED && (f.FetchedTokens != fetchedTokens || f.Usage.GetCachedTokens() != cachedTokens || w.fetched == 0) {
		w.t.Fatalf("%d tokens fetched, usage %v, said %d times", f.FetchedTokens, f.Usage, w.fetched)
	}
	if sum.Nanoseconds() != m.GetTotalNs() || m.GetTtftNs() > m.GetTotalNs() || m.GetPrefillQueueNs() > m.GetQueueNs() {
		w.t.Fatalf("timings do not add up: %v", m)
	}
	n := len(w.delivered)
	if int(f.Usage.GetCompletionTokens()) != n || int(f.Route.GetRetries()) != len(w.attempts)-1-min(w.hedge, 1) || f.Route.GetHedged() != (w.hedge > 0) {
		w.t.Fatalf("usage %v, route %v after %d tokens", f.Usage, f.Route, n)
	}
	if want := min(w.length, w.max); w.stopAt > 0 && w.stopAt <= want {
		if n != w.stopAt || f.Stop != "STOP" {
			w.t.Fatalf("%d tokens, stop %q, want %d", n, f.Stop, w.stopAt)
		}
	} else if n != want || f.Text != "tail" {
		w.t.Fatalf("%d tokens, want %d; text %q", n, want, f.Text)
	}
}

func (w *world) decodeScript(attempt, base int, here bool) []joining.Event {
	message := func(e *workerv1.DecodeEvent) joining.Event {
		return joining.DecodeMessage{Attempt: attempt, Event: e}
	}
	reserved := &workerv1.Reserved{CachedTokens: cachedTokens + 1}
	if !here {
		reserved.Ticket = &kvtransferv1.Ticket{TransferId: 1}
		base++
	}
	script := []joining.Event{
		message(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Reserved{Reserved: reserved}}),
		message(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Admitted{Admitted: &workerv1.Admitted{QueueNs: int64(time.Second)}}}),
	}
	script = w.mayPause(script, 1, message(paused))
	for {
		script = w.mayPause(script, len(script), message(paused), message(resumed))
		tokens := &workerv1.Tokens{Offset: uint32(base)}
		last, reason := false, inferencev1.FinishReason(0)
		for range rapid.IntRange(1, 3).Draw(w.t, "run") {
			tokens.TokenIds = append(tokens.TokenIds, uint32(token(base, w.length)))
			if w.top != nil {
				tokens.Logprobs = append(tokens.Logprobs, workertest.Logprobs(w.top, uint32(token(base, w.length)), base))
			}
			last, reason = w.last(base)
			if base++; last {
				break
			}
		}
		script = append(script, message(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Tokens{Tokens: tokens}}))
		if last {
			return append(script, message(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Ended{Ended: &workerv1.Ended{Reason: reason}}}))
		}
	}
}

func (w *world) prefillScript(attempt, base int) []joining.Event {
	message := func(e *workerv1.PrefillEvent) joining.Event {
		return joining.PrefillMessage{Attempt: attempt, Event: e}
	}
	last, reason := w.last(base)
	return []joining.Event{
		message(&workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_Started{Started: &workerv1.PrefillStarted{
			QueueNs: int64(50 * time.Millisecond), FetchNs: int64(20 * time.Millisecond), FetchedTokens: fetchedTokens, CachedTokens: cachedTokens,
			FetchVerdict: workerv1.FetchVerdict_FETCH_VERDICT_GIVEN,
		}}}),
		message(&workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_FirstToken{FirstToken: &workerv1.FirstToken{
			TokenId: uint32(token(base, w.length)), Last: last, Reason: reason,
			Logprobs: workertest.Logprobs(w.top, uint32(token(base, w.length)), base),
		}}}),
		message(&workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_Sent{Sent: &workerv1.KvSent{Bytes: 10}}}),
	}
}

// held reports that a stream cannot say more yet: decode waits for its KV. The
// word that it came may overtake what prefill says to the router, so Sent need
// not be out; that the first token was drawn is enough.
func (w *world) held(id joining.Stream, s *stream) bool {
	if id.Side == joining.Prefill || len(s.script) == 0 {
		return false
	}
	m, ok := s.script[0].(joining.DecodeMessage)
	if !ok || m.Event.GetAdmitted() == nil && m.Event.GetPaused() == nil {
		return false
	}
	t := w.attempts[id.Attempt]
	return t.disaggregated && !t.committed
}

// step lets one drawn thing happen.
func (w *world) step() {
	type choice struct {
		name string
		do   func()
	}
	var choices []choice
	add := func(name string, do func()) { choices = append(choices, choice{name, do}) }
	if w.asked != nil {
		add("dispatch", w.dispatch)
		add("refuse", func() {
			a := w.asked
			w.asked = nil
			w.send(joining.Refused{Attempt: a.Attempt, Err: &routing.Refusal{Code: codes.Unavailable}})
		})
	}
	for _, id := range w.streams() {
		s := w.open[id]
		if len(s.script) > 0 && !w.held(id, s) {
			speak := func() { w.speak(id, s) }
			add(fmt.Sprint("speak ", id), speak)
			add(fmt.Sprint("speak more ", id), speak) // twice as likely as to die
		}
		if len(s.script) == 0 { // all was said, or it was cancelled
			add(fmt.Sprint("end ", id), func() { w.close(id, s, s.end) })
		} else {
			add(fmt.Sprint("die ", id), func() { w.close(id, s, w.death()) })
			if w.chaos && len(s.script) > 0 {
				add(fmt.Sprint("repeat ", id), func() { w.send(s.script[0]) })
			}
		}
	}
	if next, ok := w.join.Next(); ok {
		add("tick", func() {
			w.now = next
			w.send(joining.Tick{})
		})
	}
	if rapid.IntRange(0, 30).Draw(w.t, "abort") == 0 {
		add("abort", func() { w.send(joining.Abort{Err: status.Error(codes.Canceled, "gone")}) })
	}
	if len(choices) == 0 {
		w.t.Fatal("nothing can happen any more, and the request is not done")
	}
	c := choices[rapid.IntRange(0, len(choices)-1).Draw(w.t, "choice")]
	c.do()
}

func (w *world) streams() []joining.Stream {
	var ids []joining.Stream
	for id, s := range w.open {
		if !s.done {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b joining.Stream) int {
		return 2*(a.Attempt-b.Attempt) + int(a.Side) - int(b.Side)
	})
	return ids
}

func (w *world) death() error {
	return rapid.SampledFrom([]error{
		status.Error(codes.Unavailable, "connection lost"),
		rpc.Error(codes.ResourceExhausted, "QUEUE_FULL", "full", time.Second),
		rpc.Error(codes.Unavailable, api.ReasonTransferFailed, "transfer", 0),
		rpc.Error(codes.Unavailable, api.ReasonTransferUnreachable, "path", 0),
		status.Error(codes.Internal, "bug"),
		nil,
	}).Draw(w.t, "death")
}

func (w *world) close(id joining.Stream, s *stream, err error) {
	s.done = true
	w.send(joining.Closed{Stream: id, Err: err})
}

func (w *world) speak(id joining.Stream, s *stream) {
	event := s.script[0]
	s.script = s.script[1:]
	if m, ok := event.(joining.PrefillMessage); ok && m.Event.GetStarted() != nil && len(s.script) > 0 {
		// From here on the first token may be drawn, and the KV arrive, before the
		// router hears of it. If the token is the last, decode is told so.
		if first := s.script[0].(joining.PrefillMessage).Event.GetFirstToken(); !first.GetLast() {
			w.attempts[id.Attempt].committed = true
		} else if d := w.open[joining.Stream{Attempt: id.Attempt, Side: joining.Decode}]; !d.done {
			d.script, d.end = nil, rpc.Error(codes.Canceled, api.ReasonFinishedAtPrefill, "finished", 0)
		}
	}
	w.send(event)
}

// askedHedge answers a request for a second attempt.
func (w *world) askedHedge(a joining.AskHedge) {
	if len(w.delivered) > 0 || w.hedge > 0 || w.asked != nil || a.ID != w.join.ID(true) || len(a.Generated) > 0 {
		w.t.Fatalf("%+v after %v and %d", a, w.delivered, w.hedge)
	}
	var answer joining.Event = joining.Refused{Attempt: a.Attempt, Err: &routing.Refusal{Code: codes.ResourceExhausted}}
	if rapid.IntRange(0, 3).Draw(w.t, "hedge") > 0 {
		w.hedge, w.beside = a.Attempt, true
		e := w.choose(a.Attempt, a.Failures)
		e.ID = a.ID
		answer = e
	}
	for _, action := range w.join.Handle(w.now, answer) {
		w.take(action)
	}
}

func (w *world) dispatch() {
	a := w.asked
	w.asked = nil
	w.send(w.choose(a.Attempt, a.Failures))
}

// choose draws the workers of an attempt.
func (w *world) choose(attempt int, failures []routing.Failure) joining.Dispatched {
	w.epoch++
	mode := rapid.SampledFrom([]inferencev1.Mode{inferencev1.Mode_MODE_DISAGGREGATED, inferencev1.Mode_MODE_AGGREGATED}).Draw(w.t, "mode")
	decode, prefill := "d", "p"
	if w.liar != "" && len(failures) > 0 {
		decode, prefill = "honest d", "honest p" // it is not asked again while there are others
	}
	e := joining.Dispatched{Attempt: attempt, Began: w.now, Dispatch: routing.Dispatch{Decode: routing.Ref{ID: decode, Epoch: w.epoch}, Version: routing.Version{Digest: "m", Class: "c"}}}
	if mode == inferencev1.Mode_MODE_DISAGGREGATED {
		e.Prefill = routing.Ref{ID: prefill, Epoch: w.epoch}
		e.Source = &workerv1.BlockSource{WorkerId: "s", Epoch: w.epoch, Blocks: 1}
	}
	if rapid.Bool().Draw(w.t, "derived") {
		e.DecodeSilence = routing.Silence{Queue: 5 * time.Second, Prompt: 5 * time.Second, Tokens: 2 * time.Second}
		e.PrefillSilence = e.DecodeSilence
	}
	e.HedgeAfter = time.Duration(rapid.IntRange(0, 2).Draw(w.t, "hedge after")) * 500 * time.Millisecond
	w.attempts[attempt] = &tryState{disaggregated: mode == inferencev1.Mode_MODE_DISAGGREGATED, epoch: w.epoch}
	return e
}
