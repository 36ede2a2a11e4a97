package openai

import (
	"bytes"
	"slices"
	"strconv"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// respond serves a response.
func (h *Handler) respond(e *exchange) error {
	held := &held{left: &h.left}
	defer held.release()
	a, err := h.assembly(e, h.responses, held)
	if err != nil {
		return err
	}
	if err := h.truncate(e.request.Context(), a.call); err != nil {
		return err
	}
	if a.call.stream {
		return h.streamResponse(e, a)
	}
	if err := h.runResponse(e, a, func(event *inferencev1.GenerateEvent) error { return a.collect(0, event) }, nil); err != nil {
		return err
	}
	return e.reply(200, a.wholeResponse())
}

// runResponse generates the answer of a response. What the answer says of its request is held
// until the end.
func (h *Handler) runResponse(e *exchange, a *assembly, to func(*inferencev1.GenerateEvent) error, now func(*inferencev1.GenerateEvent) bool) error {
	var unkept error
	err := h.run(e.request.Context(), a.call, func(_ int, event *inferencev1.GenerateEvent) error {
		if event.GetAccepted() != nil {
			if a.admitted(); !a.held.take(a.call.response.bytes()) {
				unkept = full()
				return unkept
			}
		}
		unkept = to(event)
		return unkept
	}, now)
	if unkept != nil {
		err = unkept // the backend takes it for a client that is gone
	}
	if err != nil {
		return rename(err, a.call.name)
	}
	return nil
}

// streamResponse serves a response piece by piece.
func (h *Handler) streamResponse(e *exchange, a *assembly) error {
	s := &responseStream{stream: &stream{assembly: a}}
	s.events = s.take
	e.lastWords = s.fail
	if e.request.ProtoAtLeast(1, 1) { // before, there were no chunks
		s.now = connOf(e.request.Context())
	}
	if err := h.runResponse(e, a, func(event *inferencev1.GenerateEvent) error { return s.receive(0, event) }, s.sendNow()); err != nil {
		return err
	}
	return s.finish()
}

// responseStream sends a response as events.
type responseStream struct {
	*stream
	sequence int   // of the next event
	opened   bool  // the message has begun
	delta    piece // what comes before the number and between it and the text, of text alone
	after    []byte
}

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
}

// take sends what an event adds, and keeps the text: the last events have all of it.
func (s *responseStream) take(event *inferencev1.GenerateEvent) error {
	if event.GetAccepted() != nil {
		s.note(0, event)
		return s.begin()
	}
	p := &s.answers[0]
	before := len(p.chat.Content)
	if err := s.collect(0, event); err != nil {
		return err
	}
	text := event.GetTokens().GetText() + event.GetFinished().GetText()
	return s.add(text, p.chat.Content[before:])
}

// begin sends the first events.
func (s *responseStream) begin() error {
	for _, kind := range []string{"response.created", "response.in_progress"} {
		if err := s.say(responseEvent{Type: kind, Response: s.assembly.response(statusInProgress)}); err != nil {
			return err
		}
	}
	return nil
}

// open begins the message, once.
func (s *responseStream) open() error {
	if s.opened {
		return nil
	}
	s.opened = true
	item := outputItem{ID: s.messageID(), Type: "message", Status: statusInProgress, Role: "assistant", Content: []outputText{}}
	if err := s.say(responseEvent{Type: "response.output_item.added", OutputIndex: new(int), Item: &item}); err != nil {
		return err
	}
	part := outputText{Type: "output_text", Annotations: []struct{}{}, Logprobs: []chatToken{}}
	return s.say(s.ofPart(responseEvent{Type: "response.content_part.added", Part: &part}))
}

// ofPart is an event of the message's part.
func (s *responseStream) ofPart(event responseEvent) responseEvent {
	event.ItemID, event.OutputIndex, event.ContentIndex = s.messageID(), new(int), new(int)
	return event
}

// add sends text. Tokens whose text is held back are sent only if something is said of them.
func (s *responseStream) add(text string, probabilities []chatToken) error {
	if text == "" && len(probabilities) == 0 {
		return nil
	}
	if err := s.open(); err != nil {
		return err
	}
	delta := s.ofPart(responseEvent{Type: "response.output_text.delta", Delta: &text, Logprobs: new(logprobsOf(probabilities))})
	if len(probabilities) > 0 {
		return s.say(delta)
	}
	return s.addText(delta, text)
}

// addText sends a delta of text alone, with the rest of the event as it was before: nearly all
// events are such, and only their numbers differ.
func (s *responseStream) addText(delta responseEvent, text string) error {
	if s.after == nil {
		const mark, number = `"\u0001"`, `"sequence_number":0`
		delta.Delta = new("\x01")
		whole, err := marshal(delta)
		if err != nil {
			return err
		}
		i := bytes.Index(whole, []byte(number)) + len(number) - 1
		j := bytes.LastIndex(whole, []byte(mark))
		s.delta.before = append([]byte("event: "+delta.Type+"\ndata: "), whole[:i]...)
		s.delta.after = slices.Clone(whole[i+1 : j])
		s.after = append(slices.Clone(whole[j+len(mark):]), "\n\n"...)
	}
	s.buffer = append(s.identify(), s.delta.before...)
	s.buffer = strconv.AppendInt(s.buffer, int64(s.sequence), 10)
	s.buffer = appendJSON(append(s.buffer, s.delta.after...), text)
	s.buffer = append(s.buffer, s.after...)
	s.sequence++
	return s.write()
}

// say sends an event.
func (s *responseStream) say(event responseEvent) error {
	event.Sequence = s.sequence
	s.sequence++
	body, err := marshal(event)
	if err != nil {
		return err
	}
	s.buffer = append(append(append(s.identify(), "event: "...), event.Type...), "\ndata: "...)
	s.buffer = append(append(s.buffer, body...), "\n\n"...)
	return s.write()
}

// finish ends a stream that went well.
func (s *responseStream) finish() error {
	if err := s.open(); err != nil { // an answer without text is an empty message
		return err
	}
	out := s.wholeResponse()
	part := &out.Output[0].Content[0]
	for _, event := range []responseEvent{
		s.ofPart(responseEvent{Type: "response.output_text.done", Text: &part.Text, Logprobs: &part.Logprobs}),
		s.ofPart(responseEvent{Type: "response.content_part.done", Part: part}),
		{Type: "response.output_item.done", OutputIndex: new(int), Item: &out.Output[0]},
		{Type: "response." + out.Status, Response: out},
	} {
		if err := s.say(event); err != nil {
			return err
		}
	}
	return nil
}

// fail ends a stream that failed after it had begun.
func (s *responseStream) fail(f *Failure) error {
	s.isNow = false
	return s.say(responseEvent{Type: "response.failed", Response: s.failedResponse(f)})
}
