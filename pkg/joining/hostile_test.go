package joining_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// Whatever workers send, in whatever order, a request ends, once, and nothing
// panics.
func TestNothingThatWorkersSendPanics(t *testing.T) { rapid.Check(t, workersSendAnything) }

// FuzzWorkers looks for such messages by what they reach.
func FuzzWorkers(f *testing.F) { f.Fuzz(rapid.MakeFuzz(workersSendAnything)) }

func workersSendAnything(t *rapid.T) {
	now := time.Unix(1000, 0)
	number := func() int64 {
		return rapid.SampledFrom([]int64{math.MinInt64, -1, 0, 1, int64(time.Second), math.MaxInt64}).Draw(t, "number")
	}
	small := func() uint32 {
		return rapid.SampledFrom([]uint32{0, 1, 2, 3, 99, math.MaxInt32, math.MaxUint32}).Draw(t, "small")
	}
	j := joining.New(joining.Params{
		Arrived: now, Tokenized: now, PromptTokens: 5, MaxTokens: 4, StopTokens: []int32{stopToken}, Text: &words{},
		MaxAttempts: 3, MaxRefusals: 4, Linger: time.Second, Logprobs: rapid.Bool().Draw(t, "logprobs"), TopLogprobs: 1,
		Silence: routing.Silence{Queue: time.Minute, Prompt: time.Minute, Tokens: time.Minute},
	})
	logprobs := func() *inferencev1.TokenLogprobs {
		return rapid.SampledFrom([]*inferencev1.TokenLogprobs{nil, {}, {Top: make([]*inferencev1.TokenLogprob, 1)}, {Top: make([]*inferencev1.TokenLogprob, 2)}}).Draw(t, "of a token")
	}
	attempt, finishes := 0, 0
	open := make(map[joining.Stream]bool)
	asked := false
	send := func(event joining.Event) {
		for _, action := range j.Handle(now, event) {
			switch a := action.(type) {
			case joining.Ask:
				attempt, asked = a.Attempt, true
			case joining.Withdraw:
				asked = false
			case joining.OpenDecode:
				open[a.Stream] = true
			case joining.OpenPrefill:
				open[a.Stream] = true
			case joining.Finish:
				finishes++
				if u := a.Usage; u.GetAcceptedDraftTokens() > u.GetDraftTokens() {
					t.Fatalf("more guesses were right than there were: %v", u)
				}
			}
		}
	}
	decode := func(e *workerv1.DecodeEvent) { send(joining.DecodeMessage{Attempt: attempt, Event: e}) }
	prefill := func(e *workerv1.PrefillEvent) { send(joining.PrefillMessage{Attempt: attempt, Event: e}) }
	send(joining.Start{})
	for range 40 {
		now = now.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "ms")) * time.Millisecond)
		if asked {
			asked = false
			d := joining.Dispatched{Attempt: attempt, Dispatch: routing.Dispatch{Decode: routing.Ref{ID: "d"}}}
			if rapid.Bool().Draw(t, "disaggregated") {
				d.Prefill = routing.Ref{ID: "p"}
			}
			send(d)
		}
		switch rapid.IntRange(0, 10).Draw(t, "event") {
		case 0:
			decode(rapid.SampledFrom([]*workerv1.DecodeEvent{nil, {}, {Event: &workerv1.DecodeEvent_Tokens{}}, {Event: &workerv1.DecodeEvent_Ended{}}}).Draw(t, "empty"))
		case 1, 2:
			reserved := &workerv1.Reserved{CachedTokens: small()}
			if rapid.Bool().Draw(t, "ticket") {
				reserved.Ticket = &kvtransferv1.Ticket{}
			}
			decode(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Reserved{Reserved: reserved}})
		case 3:
			decode(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Admitted{Admitted: &workerv1.Admitted{QueueNs: number(), CachedTokens: small()}}})
		case 4:
			decode(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Tokens{Tokens: &workerv1.Tokens{
				Offset: small(), TokenIds: []uint32{small()}, Logprobs: slices.Repeat([]*inferencev1.TokenLogprobs{logprobs()}, rapid.IntRange(0, 2).Draw(t, "of tokens")),
			}}})
		case 5:
			decode(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Ended{Ended: &workerv1.Ended{
				Reason: inferencev1.FinishReason(rapid.Int32Range(-1, 5).Draw(t, "reason")), PrefillComputeNs: number(), DecodeComputeNs: number(),
				DraftTokens: small(), AcceptedDraftTokens: small(),
			}}})
		case 6:
			prefill(rapid.SampledFrom([]*workerv1.PrefillEvent{nil, {}, {Event: &workerv1.PrefillEvent_Started{Started: &workerv1.PrefillStarted{QueueNs: number(), FetchNs: number(), FetchedTokens: uint32(number()), FetchVerdict: workerv1.FetchVerdict(number()), CachedTokens: uint32(number())}}}}).Draw(t, "start"))
		case 7:
			prefill(&workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_FirstToken{FirstToken: &workerv1.FirstToken{
				TokenId: small(), Last: rapid.Bool().Draw(t, "last"), ComputeNs: number(), Logprobs: logprobs(),
			}}})
		case 8:
			prefill(&workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_Sent{Sent: &workerv1.KvSent{Bytes: math.MaxUint64, TransferNs: number()}}})
		case 9:
			decode(rapid.SampledFrom([]*workerv1.DecodeEvent{paused, resumed}).Draw(t, "pause"))
		case 10:
			side := rapid.SampledFrom([]joining.Side{joining.Decode, joining.Prefill}).Draw(t, "side")
			if s := (joining.Stream{Attempt: attempt, Side: side}); open[s] {
				delete(open, s)
				code := codes.Code(rapid.Uint32Range(0, 20).Draw(t, "code"))
				send(joining.Closed{Stream: s, Err: rpc.Error(code, "X", "", time.Duration(number()))})
			}
		}
	}
	send(joining.Abort{Err: rpc.Error(codes.Canceled, "X", "", 0)})
	for s := range open {
		send(joining.Closed{Stream: s})
	}
	if finishes != 1 || !j.Done() {
		t.Fatalf("%d ends, done: %v", finishes, j.Done())
	}
}
