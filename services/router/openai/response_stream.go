package openai

import (
	"net/http"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// respond serves a response.
func (h *Handler) respond(a *assembly) error {
	if err := h.truncate(a.exchange, a.parsed); err != nil {
		return err
	}
	if a.parsed.stream {
		return h.streamResponse(a)
	}
	o := &output{assembly: a}
	if err := h.runResponse(a, func(_ int, event *inferencev1.GenerateEvent) error { return o.take(event) }, nil); err != nil {
		return err
	}
	if err := o.finish(); err != nil {
		return err
	}
	return a.exchange.reply(http.StatusOK, a.wholeResponse(o.items))
}

// runResponse generates the answer of a response. What the answer says of its request is held
// until the end.
func (h *Handler) runResponse(a *assembly, to receive, now func(*inferencev1.GenerateEvent) bool) error {
	return h.run(a, func(index int, event *inferencev1.GenerateEvent) error {
		if event.GetAccepted() != nil && !a.memory.take(a.parsed.response.bytes()) {
			return full()
		}
		return to(index, event)
	}, now)
}

// streamResponse serves a response piece by piece.
func (h *Handler) streamResponse(a *assembly) error {
	s := &responseStream{stream: newStream(a), output: output{assembly: a}}
	s.events, s.output.say = s.take, s.say
	a.exchange.lastWords = s.fail
	if err := h.runResponse(a, s.receive, s.sendNow()); err != nil {
		return err
	}
	return s.finish()
}

// responseStream sends a response as events.
type responseStream struct {
	*stream
	output   output
	sequence int // of the next event
	delta    textDelta
}

// eventTextDelta is the type of events with text.
const eventTextDelta = "response.output_text.delta"

// responseEvent is one event. Which members it has depends on its type.
type responseEvent struct {
	Type         string          `json:"type"`
	Sequence     int             `json:"sequence_number"`
	Response     *responseObject `json:"response,omitempty"`
	ItemID       string          `json:"item_id,omitempty"`
	OutputIndex  *int            `json:"output_index,omitempty"`
	ContentIndex *int            `json:"content_index,omitempty"`
	Item         *outputItem     `json:"item,omitempty"`
	Part         *outputText     `json:"part,omitempty"`
	Delta        *string         `json:"delta,omitempty"`
	Text         *string         `json:"text,omitempty"`
	Logprobs     *[]chatToken    `json:"logprobs,omitempty"`
	Arguments    *string         `json:"arguments,omitempty"`
	Name         string          `json:"name,omitempty"` // of the function
}

// take sends what an event adds.
func (s *responseStream) take(event *inferencev1.GenerateEvent) error {
	if event.GetAccepted() == nil {
		return s.output.take(event)
	}
	s.note(0, event)
	for _, kind := range []string{"response.created", "response.in_progress"} {
		if err := s.say(responseEvent{Type: kind, Response: s.assembly.response(statusInProgress)}); err != nil {
			return err
		}
	}
	return nil
}

// say sends an event.
func (s *responseStream) say(event responseEvent) error {
	s.buffer = s.identify()
	if event.Type == eventTextDelta && len(*event.Logprobs) == 0 {
		text := *event.Delta
		if err := s.delta.prepare(event); err != nil {
			return err
		}
		s.buffer = s.delta.append(s.buffer, s.sequence, text)
	} else {
		event.Sequence = s.sequence
		body, err := marshal(event)
		if err != nil {
			return err
		}
		s.buffer = append(append(append(s.buffer, "event: "...), event.Type...), "\ndata: "...)
		s.buffer = append(append(s.buffer, body...), "\n\n"...)
	}
	s.sequence++
	return s.write()
}

// finish ends a stream that went well.
func (s *responseStream) finish() error {
	if err := s.output.finish(); err != nil {
		return err
	}
	out := s.wholeResponse(s.output.items)
	return s.say(responseEvent{Type: "response." + out.Status, Response: out})
}

// fail ends a stream that failed after it had begun.
func (s *responseStream) fail(f *Failure) error {
	s.isNow = false
	return s.say(responseEvent{Type: "response.failed", Response: s.failedResponse(f, s.output.soFar())})
}
