package joining

import (
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/services/router/internal/fleet"
)

// Side is which of the two streams of a try is meant.
type Side int

// The sides.
const (
	Decode Side = iota
	Prefill
)

// String is the side's name.
func (s Side) String() string {
	if s == Prefill {
		return "prefill"
	}
	return "decode"
}

// Stream names a stream: the side and the try that opened it.
type Stream struct {
	Attempt int
	Side    Side
}

// Event is what happens to a request: one of the types below. Events of streams
// that the machine has closed are ignored, except Closed.
type Event interface{ event() }

type (
	// Start is the first event.
	Start struct{}
	// Dispatched answers Ask with a choice of workers. Deciding began at Began,
	// by the machine's clock.
	Dispatched struct {
		Attempt int
		Began   time.Time
		Mode    inferencev1.Mode
		Decode  fleet.Ref
		// Prefill is the zero Ref in aggregated mode.
		Prefill fleet.Ref
		// Source is what the prefill worker is told of a block store; nil: nothing.
		Source  *workerv1.BlockSource
		Reason  string
		Lineage string
	}
	// Refused answers Ask when no workers are to be had; Err is a gRPC status.
	Refused struct {
		Attempt int
		Err     error
	}
	// DecodeMessage is a message of the decode stream.
	DecodeMessage struct {
		Attempt int
		Event   *workerv1.DecodeEvent
	}
	// PrefillMessage is a message of the prefill stream.
	PrefillMessage struct {
		Attempt int
		Event   *workerv1.PrefillEvent
	}
	// Closed is the end of a stream, exactly one for each Open. Err is nil after
	// a clean end, otherwise a gRPC status.
	Closed struct {
		Stream Stream
		Err    error
	}
	// Abort ends the request from outside: its client is gone, its deadline came,
	// the router shuts down. Err is the gRPC status that it ends with.
	Abort struct{ Err error }
	// Tick is the passing of time; due at Next.
	Tick struct{}
)

func (Start) event()          {}
func (Dispatched) event()     {}
func (Refused) event()        {}
func (DecodeMessage) event()  {}
func (PrefillMessage) event() {}
func (Closed) event()         {}
func (Abort) event()          {}
func (Tick) event()           {}

// Action is what a request wants done: one of the types below.
type Action interface{ action() }

type (
	// Ask asks for a choice of workers. It is answered by one Dispatched or
	// Refused, unless Withdraw comes first.
	Ask struct {
		Attempt int
		// Generated is the tokens so far.
		Generated []int32
		Failures  []fleet.Failure
		// Lineage that the workers have to have, once tokens were delivered.
		Lineage string
	}
	// Withdraw takes the last Ask back.
	Withdraw struct{}
	// OpenDecode opens a decode stream.
	OpenDecode struct {
		Stream Stream
		Worker fleet.Ref
		// Generated is the tokens so far.
		Generated   []int32
		PrefillHere bool
	}
	// OpenPrefill opens a prefill stream.
	OpenPrefill struct {
		Stream    Stream
		Worker    fleet.Ref
		Generated []int32
		Ticket    *kvtransferv1.Ticket
		// Source is a block store that has more of the prompt; nil: none has.
		Source *workerv1.BlockSource
	}
	// Close cancels a stream. Its Closed comes nevertheless.
	Close struct{ Stream Stream }
	// PromptDone says that the workers of the present try have computed the
	// prompt.
	PromptDone struct{}
	// Fetched is what the worker that asked Dispatched.Source says of it.
	Fetched struct{ fleet.Fetched }
	// Release says that a try is over and what failed in it.
	Release struct {
		Attempt  int
		Failures []fleet.Failure
		// Err is what ended the try, if it failed.
		Err error
	}
	// Accept says that workers took the request. It comes at most once, before
	// the first Deliver.
	Accept struct{}
	// Deliver is one token with the text that became certain with it.
	Deliver struct {
		Offset int
		Token  int32
		Text   string
		// Logprobs is as the worker sent it; nil if the request did not ask.
		Logprobs *inferencev1.TokenLogprobs
	}
	// Finish is the end of the request for its client: exactly one.
	Finish struct {
		// Err is a gRPC status, nil if the request went well; the rest is set only
		// then.
		Err     error
		Reason  inferencev1.FinishReason
		Text    string
		Stop    string
		Usage   *inferencev1.Usage
		Route   *inferencev1.Route
		Timings *inferencev1.Timings
		// FetchedTokens is how much of Usage.CachedTokens came from a block store.
		FetchedTokens int
	}
)

func (Ask) action()         {}
func (Withdraw) action()    {}
func (OpenDecode) action()  {}
func (OpenPrefill) action() {}
func (Close) action()       {}
func (PromptDone) action()  {}
func (Fetched) action()     {}
func (Release) action()     {}
func (Accept) action()      {}
func (Deliver) action()     {}
func (Finish) action()      {}

// Text makes text of tokens and looks for stop texts in it.
type Text interface {
	// Push takes in one token and returns the text that became certain. If stop
	// is not empty, the text ends right before it.
	Push(token int32) (text, stop string)
	// Flush returns what is held back, at the end.
	Flush() (text, stop string)
}

// Params are what a request asks, as far as its life depends on it.
type Params struct {
	// Arrived and Tokenized bound the first stage of the latency budget.
	Arrived, Tokenized time.Time
	// PromptTokens is the length of the prompt.
	PromptTokens int
	// MaxTokens is the most tokens to generate, at least 1.
	MaxTokens int
	// StopTokens end the text and are part of it.
	StopTokens []int32
	// Text of this request alone.
	Text Text
	// Logprobs: workers have to say how likely each token is, beside at most
	// TopLogprobs of the likeliest ones.
	Logprobs    bool
	TopLogprobs int
	// MaxAttempts is the most tries in which a worker failed; a refusal for want
	// of room spends nothing and is bounded by MaxRefusals instead.
	MaxAttempts, MaxRefusals int
	// Linger is how long a stream may take to end by itself once nothing of it
	// matters any more, and how long the early end of one stream waits for the
	// other to explain it.
	Linger time.Duration
	// Silence bounds how long workers may say nothing.
	Silence Silence
}
