package joining_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// said is what came of the actions that one event gave.
type said struct {
	ask          *joining.Ask
	finish       *joining.Finish
	release      *joining.Release
	contradicted []routing.Contradicted
	doubt        *joining.CheckProgress
}

func saidIn(actions []joining.Action) (s said) {
	for _, action := range actions {
		switch a := action.(type) {
		case joining.Ask:
			s.ask = &a
		case joining.Finish:
			s.finish = &a
		case joining.Release:
			s.release = &a
		case joining.Tell:
			if c, is := a.Event.(routing.Contradicted); is {
				s.contradicted = append(s.contradicted, c)
			}
		case joining.CheckProgress:
			s.doubt = &a
		}
	}
	return s
}

// request is one that is served by one decode worker at a time.
type request struct {
	join    *joining.Join
	now     time.Time
	attempt int
}

func newRequest(deadline time.Time, maxTokens int) *request {
	r := &request{now: time.Unix(1000, 0), attempt: -1}
	r.join = joining.New(joining.Params{
		Arrived: r.now, Tokenized: r.now, PromptTokens: 3, MaxTokens: maxTokens, VocabSize: 100, StopTokens: []int32{stopToken}, Text: silent{}, Deadline: deadline,
		MaxAttempts: 3, MaxRefusals: 3, Linger: time.Second,
		Silence: routing.Silence{Queue: 30 * time.Second, Prompt: 60 * time.Second, Tokens: 10 * time.Second},
	})
	r.do(joining.Start{})
	return r
}

func (r *request) do(event joining.Event) said { return saidIn(r.join.Handle(r.now, event)) }

func (r *request) dispatch(to string) {
	r.attempt++
	r.do(joining.Dispatched{Attempt: r.attempt, Began: r.now, Dispatch: routing.Dispatch{Decode: routing.Ref{ID: to, Epoch: 1}}})
}

func (r *request) decode(event *workerv1.DecodeEvent) said {
	return r.do(joining.DecodeMessage{Attempt: r.attempt, Event: event})
}

func (r *request) end(err error) said {
	return r.do(joining.Closed{Stream: joining.Stream{Attempt: r.attempt}, Err: err})
}

// What a worker says of a request is the end when another one says the same.
func TestASecondOpinionIsFinal(t *testing.T) {
	wrong := func(field string) error { return rpc.InvalidArgument(field, "is wrong") }
	for _, test := range []struct {
		name          string
		first, second string // who says it
		one, two      error
		final         bool
	}{
		{"another agrees", "d1", "d2", wrong("task.x"), wrong("task.x"), true},
		{"the same one again", "d1", "d1", wrong("task.x"), wrong("task.x"), false},
		{"another field", "d1", "d2", wrong("task.x"), wrong("task.y"), false},
		{"another status", "d1", "d2", wrong("task.x"), status.Error(codes.Internal, "bug"), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRequest(time.Time{}, 5)
			r.dispatch(test.first)
			s := r.end(test.one)
			if s.finish != nil || s.ask == nil || len(s.release.Failures) != 1 || !s.release.Failures[0].Verdict {
				t.Fatalf("the first gives %+v", s)
			}
			r.dispatch(test.second)
			s = r.end(test.two)
			if final := s.finish != nil; final != test.final {
				t.Fatalf("the second gives %+v", s)
			}
			if test.final && (rpc.Field(s.finish.Err) != "task.x" || len(s.release.Failures) != 0 || s.release.Err != nil) {
				t.Errorf("ends with %v, blames %v", s.finish.Err, s.release)
			}
		})
	}
}

// Where nobody else can be asked, the only opinion counts; where others are only
// full, or late, it does not.
func TestTheOnlyOpinion(t *testing.T) {
	for reason, want := range map[string]codes.Code{
		api.ReasonWorkerLost: codes.InvalidArgument, api.ReasonNoWorkers: codes.InvalidArgument,
		api.ReasonQueueTimeout: codes.Unavailable, api.ReasonDeadline: codes.Unavailable,
	} {
		r := newRequest(time.Time{}, 5)
		r.dispatch("d1")
		r.end(rpc.InvalidArgument("task.x", "is wrong"))
		s := r.do(joining.Refused{Attempt: 1, Err: &routing.Refusal{Code: codes.Unavailable, Reason: reason}})
		got := codes.Unavailable
		if s.finish != nil && rpc.Field(s.finish.Err) == "task.x" {
			got = codes.InvalidArgument
		}
		if s.finish == nil || got != want {
			t.Errorf("%s: ends with %+v", reason, s.finish)
		}
	}
}

// That the deadline has come is what the router's clock says.
func TestDeadlineOfAWorker(t *testing.T) {
	for _, test := range []struct {
		left  time.Duration // until the deadline; 0: there is none
		final bool
	}{{0, false}, {time.Minute, false}, {50 * time.Millisecond, true}, {-time.Millisecond, true}} {
		deadline := time.Time{}
		if test.left != 0 {
			deadline = time.Unix(1000, 0).Add(test.left)
		}
		r := newRequest(deadline, 5)
		r.dispatch("d1")
		s := r.end(status.Error(codes.DeadlineExceeded, "said the worker"))
		if final := s.finish != nil && status.Code(s.finish.Err) == codes.DeadlineExceeded && len(s.release.Failures) == 0; final != test.final {
			t.Errorf("%v before it: %+v", test.left, s)
		}
	}
}

// Of an end the tokens are the proof, whatever the worker calls it.
func TestAnEndIsWhatTheTokensBearOut(t *testing.T) {
	ended := func(reason inferencev1.FinishReason) *workerv1.DecodeEvent {
		return &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Ended{Ended: &workerv1.Ended{Reason: reason}}}
	}
	tokens := func(ids ...uint32) *workerv1.DecodeEvent {
		return &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Tokens{Tokens: &workerv1.Tokens{TokenIds: ids}}}
	}
	const stop, length = inferencev1.FinishReason_FINISH_REASON_STOP, inferencev1.FinishReason_FINISH_REASON_LENGTH
	for reason := inferencev1.FinishReason(0); reason <= 6; reason++ {
		for _, test := range []struct {
			tokens []uint32
			want   inferencev1.FinishReason // 0: none, the worker has failed
		}{{[]uint32{1, 2}, 0}, {[]uint32{1, stopToken}, stop}, {[]uint32{1, 2, 3, 4, 5}, length}, {[]uint32{1, 2, 3, 4, stopToken}, stop}} {
			r := newRequest(time.Time{}, 5)
			r.dispatch("d1")
			r.decode(admitted)
			r.decode(tokens(test.tokens...))
			s := r.decode(ended(reason))
			switch {
			case test.want == 0 && (s.finish != nil || s.ask == nil || status.Code(s.release.Err) != codes.Internal):
				t.Errorf("%v after %v gives %+v", reason, test.tokens, s)
			case test.want != 0 && (s.finish == nil || s.finish.Err != nil || s.finish.Reason != test.want):
				t.Errorf("%v after %v gives %+v", reason, test.tokens, s.finish)
			}
		}
	}
	// Workers may have a shorter context than the router believes.
	r := newRequest(time.Time{}, 5)
	r.attempt++
	r.do(joining.Dispatched{Dispatch: routing.Dispatch{Decode: routing.Ref{ID: "d1", Epoch: 1}, ContextTokens: 3 + 2}})
	r.decode(admitted)
	r.decode(tokens(1, 2))
	if s := r.decode(ended(length)); s.finish == nil || s.finish.Err != nil || s.finish.Reason != length {
		t.Errorf("at the end of the context: %+v", s)
	}
	for name, bad := range map[string][]uint32{"after the stop token": {1, stopToken, 3}, "outside the vocabulary": {1, 100}, "no token at all": {1, math.MaxUint32}} {
		r := newRequest(time.Time{}, 5)
		r.dispatch("d1")
		r.decode(admitted)
		s := r.decode(tokens(bad...))
		if over := bad[1] == stopToken; over != (s.finish != nil && s.finish.Err == nil) || r.join.Tokens() > 2 || !over && r.join.Tokens() != 1 {
			t.Errorf("%s: %d tokens, %+v", name, r.join.Tokens(), s)
		}
	}
}

// lies are what no honest worker says of these requests.
var lies = []error{
	rpc.InvalidArgument("task.token_ids", "is wrong"), rpc.InvalidArgument("ticket.blocks", "is wrong"),
	status.Error(codes.InvalidArgument, "is wrong"), status.Error(codes.DeadlineExceeded, "too late"), status.Error(codes.OutOfRange, "no"),
	status.Error(codes.NotFound, "no"), status.Error(codes.Unauthenticated, "no"), status.Error(codes.PermissionDenied, "no"),
	status.Error(codes.Unimplemented, "no"), status.Error(codes.Canceled, "no"), status.Error(codes.DataLoss, "no"),
	status.Error(codes.FailedPrecondition, "no"), status.Error(codes.AlreadyExists, "no"), status.Error(codes.Aborted, "no"),
	status.Error(codes.ResourceExhausted, "no"), status.Error(codes.Unknown, "no"), status.Error(codes.Internal, "no"), nil,
}

// lie makes one side of the present attempt a liar's: after some of what it would have
// said it ends its stream, its sequence or its prompt for nothing.
func (w *world) lie(attempt int, side joining.Side) {
	s := w.open[joining.Stream{Attempt: attempt, Side: side}]
	if s == nil || len(s.script) == 0 {
		return
	}
	keep := rapid.IntRange(0, len(s.script)-1).Draw(w.t, "honest until")
	s.script, s.end = s.script[:keep], rapid.SampledFrom(lies).Draw(w.t, "lie")
	if side == joining.Decode && rapid.Bool().Draw(w.t, "says that it has ended") {
		s.script = append(s.script, joining.DecodeMessage{Attempt: attempt, Event: &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Ended{Ended: &workerv1.Ended{
			Reason: inferencev1.FinishReason(rapid.Int32Range(0, 6).Draw(w.t, "for")),
		}}}})
	}
}

// Whatever one worker says, and whenever: beside others that are honest it changes
// nothing of what a client gets.
func TestOneLiarChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.liar = rapid.SampledFrom([]string{"d", "p"}).Draw(t, "liar")
		w.send(joining.Start{})
		for steps := 0; !w.join.Done(); steps++ {
			if steps > 2000 {
				t.Fatal("it does not end")
			}
			var ready []joining.Stream
			for _, id := range w.streams() {
				if s := w.open[id]; len(s.script) == 0 || !w.held(id, s) {
					ready = append(ready, id)
				}
			}
			next, due := w.join.Next()
			switch {
			case w.asked != nil:
				w.dispatch()
			case len(ready) > 0:
				id := rapid.SampledFrom(ready).Draw(t, "stream")
				if s := w.open[id]; len(s.script) == 0 {
					w.close(id, s, s.end)
				} else {
					w.speak(id, s)
				}
			case due:
				w.now = next
				w.send(joining.Tick{})
			default:
				t.Fatal("stuck")
			}
		}
		if w.finish.Err != nil { // what it says otherwise is checked by the world
			t.Fatalf("after %d attempts: %v", len(w.attempts), w.finish.Err)
		}
	})
}

// A worker that others prove wrong is told of, once, when its work is done elsewhere.
func TestContradicted(t *testing.T) {
	for _, test := range []struct {
		err  error
		told bool
	}{
		{rpc.InvalidArgument("task.x", "is wrong"), true},
		{status.Error(codes.Internal, "bug"), true},
		{rpc.Error(codes.Unavailable, "ENGINE_FAILED", "bug", 0), true},
		{status.Error(codes.Unavailable, "connection lost"), true}, // the policy knows whether it was
		{rpc.Error(codes.Unavailable, "WORKER_DRAINING", "leaves", 0), false},
		{rpc.Error(codes.FailedPrecondition, "WRONG_EPOCH", "another", 0), false},
		{rpc.Error(codes.ResourceExhausted, "QUEUE_FULL", "full", 0), false},
	} {
		t.Run(fmt.Sprint(test.err), func(t *testing.T) {
			r := newRequest(time.Time{}, 5)
			r.dispatch("d1")
			began := r.now
			r.now = r.now.Add(time.Second)
			if s := r.end(test.err); s.ask == nil || len(s.contradicted) > 0 {
				t.Fatalf("%+v", s)
			}
			r.dispatch("d2")
			r.decode(admitted)
			s := r.decode(tokenAt(0))
			if told := len(s.contradicted) == 1 && s.contradicted[0].Worker.ID == "d1" && s.contradicted[0].Began.Equal(began); told != test.told {
				t.Errorf("%+v", s.contradicted)
			}
			if s := r.decode(tokenAt(1)); len(s.contradicted) > 0 {
				t.Error("told twice")
			}
		})
	}
}

// That an output's form took all the work that one output may is the end once the attempt has a token:
// nobody else is tried, blamed or told of. Before, it is a claim as any.
func TestConstraintEffort(t *testing.T) {
	took := rpc.ConstraintEffort("structured_output", "takes too much work")
	r := newRequest(time.Time{}, 5)
	r.dispatch("d1")
	if s := r.end(took); s.finish != nil || s.ask == nil {
		t.Fatalf("without a token: %+v", s)
	}
	r.dispatch("d2")
	r.decode(admitted)
	if s := r.decode(tokenAt(0)); len(s.contradicted) != 1 {
		t.Errorf("a token elsewhere contradicts %v", s.contradicted)
	}
	s := r.end(took)
	if s.finish == nil || s.ask != nil || rpc.Reason(s.finish.Err) != api.ReasonConstraintEffort || status.Code(s.finish.Err) != codes.InvalidArgument || len(s.release.Failures) != 0 || s.release.Err != nil {
		t.Errorf("with a token: %+v", s)
	}
}

// Only the transport, or another incarnation in its place, says that a worker is lost.
func TestWhatSaysThatAWorkerIsLost(t *testing.T) {
	d := routing.Ref{ID: "d", Epoch: 1}
	for name, test := range map[string]struct {
		err  error
		want routing.Failure
	}{
		"its connection broke": {status.Error(codes.Unavailable, "connection lost"), routing.Failure{Worker: d, Gone: true, Lost: true}},
		"another one is there": {rpc.Error(codes.FailedPrecondition, api.ReasonWrongEpoch, "epoch 2", 0), routing.Failure{Worker: d, Gone: true, Lost: true, Replaced: true}},
		"its engine failed":    {rpc.Error(codes.Unavailable, api.ReasonEngineFailed, "the engine failed", 0), routing.Failure{Worker: d, Gone: true}},
		"it leaves":            {rpc.Error(codes.Unavailable, api.ReasonWorkerDraining, "leaves", 0), routing.Failure{Worker: d, Gone: true, Leaves: true}},
		"it has a fault":       {status.Error(codes.Internal, "bug"), routing.Failure{Worker: d}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRequest(time.Time{}, 9)
			r.dispatch("d")
			if s := r.end(test.err); s.ask == nil || !slices.Equal(s.ask.Failures, []routing.Failure{test.want}) {
				t.Errorf("%+v", s.ask)
			}
		})
	}
}

// Workers that leave spend no attempt of a request, however many do; only refusals are bounded.
func TestWorkersThatLeaveSpendNoTry(t *testing.T) {
	leaves := rpc.Error(codes.Unavailable, api.ReasonWorkerDraining, "leaves", 0)
	bug := status.Error(codes.Internal, "bug")
	for name, test := range map[string]struct {
		errs   []error
		reason string // of the end; empty: it goes on
	}{
		"as many as attempts": {[]error{leaves, leaves, leaves}, ""},
		"beside two failures": {[]error{bug, leaves, bug, leaves, leaves}, ""},
		"with a third":        {[]error{bug, leaves, bug, bug}, api.ReasonWorkerLost},
		"more than refusals":  {[]error{leaves, leaves, leaves, leaves}, api.ReasonWorkerLost},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRequest(time.Time{}, 9)
			for i, err := range test.errs {
				r.dispatch(fmt.Sprint("d", i))
				r.decode(admitted)
				r.decode(tokenAt(uint32(i)))
				s := r.end(err)
				if last := i+1 == len(test.errs) && test.reason != ""; last != (s.finish != nil) {
					t.Fatalf("after %d: %+v", i+1, s)
				}
				if s.finish != nil {
					if got, is := errors.AsType[*routing.Refusal](s.finish.Err); !is || got.Reason != test.reason || got.Code != codes.Unavailable {
						t.Errorf("ends with %v", s.finish.Err)
					}
				} else if len(s.ask.Failures) != i+1 {
					t.Errorf("asks with %v", s.ask.Failures)
				}
			}
		})
	}
}
