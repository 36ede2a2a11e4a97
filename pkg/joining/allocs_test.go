package joining_test

import (
	"testing"
	"time"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// silentText makes nothing of tokens.
type silentText struct{}

func (silentText) Push(int32) (text, stop string) { return "", "" }
func (silentText) Flush() (text, stop string)     { return "", "" }

func TestTokensAllocateNothing(t *testing.T) {
	const tokens = 20000
	now := time.Unix(1000, 0)
	j := joining.New(joining.Params{
		Arrived: now, Tokenized: now, PromptTokens: 5, MaxTokens: 2 * tokens, Text: silentText{}, MaxAttempts: 1, Linger: time.Second,
		Silence: routing.Silence{Queue: time.Minute, Prompt: time.Minute, Tokens: time.Minute},
	})
	j.Handle(now, joining.Start{})
	j.Handle(now, joining.Dispatched{Dispatch: routing.Dispatch{Decode: routing.Ref{ID: "d"}}})
	j.Handle(now, joining.DecodeMessage{Event: &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Admitted{Admitted: &workerv1.Admitted{}}}})
	list := &workerv1.Tokens{TokenIds: []uint32{7}}
	m := joining.DecodeMessage{Event: &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Tokens{Tokens: list}}}
	allocs := testing.AllocsPerRun(tokens, func() {
		actions := j.HandleDecode(now, m)
		if _, is := actions[len(actions)-1].(*joining.Deliver); !is {
			t.Fatalf("token %d gave %v", list.GetOffset(), actions)
		}
		list.Offset++
		if _, due := j.Next(); !due {
			t.Fatal("nothing is due")
		}
	})
	// The list of tokens grows, and the policy is told of gaps.
	if allocs > 0.1 {
		t.Errorf("%.2f allocations a token", allocs)
	}
}
