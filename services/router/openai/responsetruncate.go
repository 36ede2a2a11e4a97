package openai

import (
	"context"
	"slices"
	"sort"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// truncate drops the oldest turns of a conversation that does not fit into the model's context, as
// few as it takes. A turn begins with a message of a user, so that no answer of a tool stays
// without its call; what the system says before the first stays. If not even the last turn fits,
// the request is left as it is, and refused as if nothing had been dropped.
func (h *Handler) truncate(ctx context.Context, c *call) error {
	q, r := c.choices[0], c.response
	tooLong := func() bool {
		_, err := h.backend.Plan(ctx, q)
		return rpc.Reason(err) == api.ReasonContextLengthExceeded
	}
	if r.truncation != truncationAuto || !tooLong() {
		return ctx.Err() // what else is wrong with it, Generate says
	}
	messages, places := q.GetConversation().GetMessages(), r.places
	head, begins := turns(messages)
	from := func(i int) {
		q.GetConversation().Messages = slices.Concat(messages[:head], messages[i:])
		r.places = slices.Concat(places[:head], places[i:])
	}
	n := sort.Search(len(begins), func(i int) bool {
		from(begins[i])
		return ctx.Err() != nil || !tooLong()
	})
	if n < len(begins) {
		from(begins[n])
	} else {
		from(head)
	}
	return ctx.Err()
}

// turns are how many messages of the system a conversation begins with, and the messages after
// the first other one with which it could begin instead.
func turns(messages []*inferencev1.Message) (head int, begins []int) {
	for head < len(messages) && messages[head].GetRole() == "system" {
		head++
	}
	for i := head + 1; i < len(messages); i++ {
		if messages[i].GetRole() == "user" {
			begins = append(begins, i)
		}
	}
	return head, begins
}
