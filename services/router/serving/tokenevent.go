package serving

import (
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
)

// tokenEvent is an event with one token, in one piece of memory.
type tokenEvent struct {
	event inferencev1.GenerateEvent
	oneof inferencev1.GenerateEvent_Tokens
	delta inferencev1.TokenDelta
	ids   [1]uint32
}

func newTokenEvent() *tokenEvent {
	e := new(tokenEvent)
	e.delta.TokenIds = e.ids[:]
	e.oneof.Tokens = &e.delta
	e.event.Event = &e.oneof
	return e
}

// set makes it the event of another token.
func (e *tokenEvent) set(d *joining.Deliver, logprobs []*inferencev1.TokenLogprobs) {
	e.event.Offset, e.ids[0] = uint64(d.Offset), uint32(d.Token)
	e.delta.Text, e.delta.Logprobs = d.Text, logprobs
}
