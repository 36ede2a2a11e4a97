package joining

import (
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
)

// Side is which of the two streams of an attempt is meant.
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

// Stream names a stream: the side and the attempt that opened it.
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
	// Dispatched answers Ask with a choice of workers. Deciding began at Began.
	Dispatched struct {
		Attempt int
		Began   time.Time
		routing.Dispatch
	}
	// Refused answers Ask when no workers are to be had; Err is a gRPC status, and Decision what
	// spoke against it, or nil.
	Refused struct {
		Attempt  int
		Err      error
		Decision *controlv1.Decision
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
	// a clean end, otherwise a gRPC status. Connection is the number of the one that it
	// ran on.
	Closed struct {
		Stream     Stream
		Err        error
		Connection uint64
	}
	// Progressed answers CheckProgress: the worker last showed at At that it computes, for
	// whomever; zero: never.
	Progressed struct {
		Stream Stream
		At     time.Time
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
func (Progressed) event()     {}
func (Abort) event()          {}
func (Tick) event()           {}

// Action is what a request wants done: one of the types below.
type Action interface{ action() }

type (
	// Ask asks for a choice of workers. It is answered by one Dispatched or
	// Refused, unless Withdraw comes first.
	Ask struct {
		Attempt int
		// Retry: a worker failed in the attempt before. One that refused or leaves did not.
		Retry bool
		// Generated is the tokens so far.
		Generated []int32
		Failures  []routing.Failure
		// Version that the workers have to have: Params.Version at the first attempt; zero: any.
		Version routing.Version
	}
	// AskHedge asks for workers of a hedged attempt beside the one that runs, which is called ID. It is
	// to be answered at once, by Dispatched or Refused.
	AskHedge struct {
		Attempt int
		ID      string
		// Late is the worker whose turn it is in the first attempt, After how long that has run.
		Late  routing.Ref
		After time.Duration
		// Again: it was refused before.
		Again bool
		// Generated, Failures and Version are as in Ask.
		Generated []int32
		Failures  []routing.Failure
		Version   routing.Version
	}
	// Withdraw takes the last Ask back.
	Withdraw struct{}
	// OpenDecode opens a decode stream.
	OpenDecode struct {
		Stream Stream
		Worker routing.Ref
		// Generated is the tokens so far.
		Generated   []int32
		PrefillHere bool
		// Sender is the prefill worker that will send the KV; empty with PrefillHere.
		Sender string
	}
	// OpenPrefill opens a prefill stream.
	OpenPrefill struct {
		Stream    Stream
		Worker    routing.Ref
		Generated []int32
		Ticket    *kvtransferv1.Ticket
		// Source is a block store that has more of the prompt; nil: none has.
		Source *workerv1.BlockSource
	}
	// Close cancels a stream. Its Closed comes nevertheless.
	Close struct{ Stream Stream }
	// Tell hands an event of this request on to the routing core.
	Tell struct{ Event routing.Event }
	// CheckProgress asks whether a worker that has been silent for long computes. It is to be
	// answered by Progressed at once.
	CheckProgress struct {
		Stream Stream
		Worker routing.Ref
	}
	// Release says that an attempt is over and what failed in it.
	Release struct {
		Attempt  int
		ID       string // of the attempt, as routing knows it
		Failures []routing.Failure
		// Hedge: it was the second of two attempts. Beside: the other one goes on, since this one failed
		// or is Lost. Lost: the other one was first with its token or, without Beside, the request ended
		// before either had one; for so long it had Computed.
		Hedge, Beside, Lost bool
		Computed            time.Duration
		// Served: it ended the request, and well, with so many tokens in this attempt and this time in
		// the decode worker's batch.
		Served   bool
		Tokens   int
		Decoding time.Duration
		// Err is what ended the attempt, if it failed.
		Err error
	}
	// Accept says that workers took the request. It comes at most once, before
	// the first Deliver.
	Accept struct{}
	// Deliver is one token with the text that became certain with it. It comes as a pointer.
	Deliver struct {
		Offset int
		Token  int32
		Text   string
		// Logprobs is as the worker sent it; nil if the request did not ask.
		Logprobs *inferencev1.TokenLogprobs
	}
	// DeliverPrompt is how likely tokens of the prompt are, from the one at Offset on, which is not
	// the first; each once, in order, before the first Deliver.
	DeliverPrompt struct {
		Offset   int
		Logprobs []*inferencev1.TokenLogprobs
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
		// MeanState is the worker's, of a request that asked for it.
		MeanState []float32
	}
)

// What becomes of hedged attempts.
const (
	// HedgeWon: it had its first token first, or outlived the first attempt.
	HedgeWon = "won"
	// HedgeLost: it did not.
	HedgeLost = "lost"
	// HedgeEnded: the request ended before either had a first token.
	HedgeEnded = "ended"
)

// Hedged is what has become of a hedged attempt, if this is the end of one of two attempts; else empty.
func (r Release) Hedged() string {
	switch {
	case r.Beside && r.Hedge:
		return HedgeLost
	case r.Beside:
		return HedgeWon
	case r.Lost:
		return HedgeEnded
	}
	return ""
}

// Late reports that the other attempt had its first token before.
func (r Release) Late() bool { return r.Lost && r.Beside }

func (Ask) action()           {}
func (AskHedge) action()      {}
func (Withdraw) action()      {}
func (OpenDecode) action()    {}
func (OpenPrefill) action()   {}
func (Close) action()         {}
func (Tell) action()          {}
func (CheckProgress) action() {}
func (Release) action()       {}
func (Accept) action()        {}
func (Deliver) action()       {}
func (DeliverPrompt) action() {}
func (Finish) action()        {}

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
	PromptTokens int
	MaxTokens    int     // to generate, at least 1
	VocabSize    int     // bounds tokens; 0: they are not checked
	StopTokens   []int32 // end the text and are part of it
	Text         Text    // of this request alone
	// Logprobs: workers have to say how likely each token is, beside at most
	// TopLogprobs of the likeliest ones.
	Logprobs    bool
	TopLogprobs int
	// PromptLogprobs: a worker that computes the prompt before anything was generated has to say how
	// likely each of its tokens is but the first, beside at most TopPromptLogprobs of the likeliest.
	PromptLogprobs    bool
	TopPromptLogprobs int
	// MeanState: the worker has to give the mean hidden state of the prompt, which comes with its
	// Ended. So an attempt that fails before delivers its tokens in vain, and the next one delivers them again.
	MeanState bool
	// Silence bounds how long workers may say nothing. Every field has to be set.
	Silence routing.Silence

	ID string // names the request to routing
	// Version is the one that the request has to run in; zero: that of its first attempt.
	Version routing.Version
	// Arrived and Tokenized bound the first stage of the latency budget.
	Arrived, Tokenized time.Time
	Deadline           time.Time // as the router enforces it; zero: none
	// MaxAttempts is the most attempts in which a worker failed. A worker that refuses
	// because it is full, or leaves, spends none; MaxRefusals bounds that.
	MaxAttempts, MaxRefusals int
	// Linger is how long a stream may take to end by itself once nothing of it
	// matters any more, and how long the early end of one stream waits for the
	// other to explain it.
	Linger time.Duration
}
