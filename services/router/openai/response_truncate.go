package openai

import (
	"slices"
	"sort"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// truncate drops the oldest turns of a conversation that does not fit into the model's context,
// as few as possible. System messages before the first turn stay. A turn begins with a user's
// message, so that no tool's answer loses its call. If not even the last turn fits, the request
// stays whole, and Generate refuses it. One whose client leaves meanwhile counts: it was rendered over and over.
func (h *Handler) truncate(e *exchange, c *parsedRequest) (err error) {
	defer func() {
		if err != nil {
			e.limits.Count(e.request.Context())
		}
	}()
	ctx, q, r := e.request.Context(), c.choices[0], c.response
	if r.truncation != truncationAuto || h.backend.Fits(ctx, q) {
		return ctx.Err() // Generate reports other errors of the request
	}
	messages, places := q.GetConversation().GetMessages(), r.places
	head, begins := turns(messages)
	from := func(i int) {
		q.GetConversation().Messages = slices.Concat(messages[:head], messages[i:])
		r.places = slices.Concat(places[:head], places[i:])
	}
	n := sort.Search(len(begins), func(i int) bool {
		from(begins[i])
		return ctx.Err() != nil || h.backend.Fits(ctx, q)
	})
	if n < len(begins) {
		from(begins[n])
	} else {
		from(head)
	}
	return ctx.Err()
}

// turns returns the number of leading system messages, and the later user messages with which
// the conversation could begin instead.
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
