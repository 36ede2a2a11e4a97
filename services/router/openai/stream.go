package openai

import (
	"bytes"
	"slices"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// stream sends an answer piece by piece, as server-sent events.
type stream struct {
	*assembly
	pieces []piece // by answer
	buffer []byte  // reused: chunkHead bytes and the last event

	now    *conn // writes without waiting; nil if there is no such connection
	isNow  bool  // write goes through now
	partly bool  // now kept a part of the last token, which has still to go

	// events sends the messages of an event, for an API with other messages; nil: receive does.
	events func(*inferencev1.GenerateEvent) error

	request string // id of the request, if events have ids; else ""
	at      place  // of the next event, in a stream with ids
	// resumed means that the client has all events up to from.
	resumed bool
	from    place
}

// newStream is a stream that sends what it can without waiting.
func newStream(a *assembly) *stream {
	s := &stream{assembly: a}
	if a.exchange.request.ProtoAtLeast(1, 1) { // before, there were no chunks
		s.now = connOf(a.exchange.request.Context())
	}
	if s.now != nil {
		s.now.whole = nil // of an answer that has failed
	}
	return s
}

// piece is a message that holds only text, as nearly all do: the parts before and after the
// text.
type piece struct{ before, after []byte }

// sendNow is receiveNow, or nil without a connection that writes without waiting.
func (s *stream) sendNow() func(*inferencev1.GenerateEvent) bool {
	if s.now == nil {
		return nil
	}
	return s.receiveNow
}

// receiveNow sends a token of the only answer, unless that could block. If it returns false, call
// receive with the token, from ServeHTTP's goroutine, which also handles a panic.
func (s *stream) receiveNow(event *inferencev1.GenerateEvent) (sent bool) {
	if event.GetTokens() == nil || s.exchange.status == 0 || s.parsed.echoTop != nil || s.parsed.empty {
		return false
	}
	s.isNow = true
	defer func() {
		s.isNow = false
		if recover() != nil {
			sent = false
		}
	}()
	if s.receive(0, event) != nil {
		return false // receive will fail too, and return the error
	}
	s.partly = s.now.kept()
	return !s.partly
}

// receive sends the message of an event.
func (s *stream) receive(index int, event *inferencev1.GenerateEvent) error {
	if s.partly {
		s.partly = false
		return s.exchange.rest(s.now)
	}
	if s.events != nil {
		return s.events(event)
	}
	s.note(index, event)
	switch {
	case event.GetAccepted() != nil:
		if s.parsed.ids {
			s.request = event.GetAccepted().GetRequestId()
		}
		return s.begin(index)
	case event.GetPromptLogprobs() != nil:
		return s.scored(event.GetPromptLogprobs())
	}
	if err := s.echoScored(index); err != nil {
		return err
	}
	switch {
	case event.GetTokens() != nil && s.parsed.empty:
		return nil
	case event.GetTokens() != nil:
		s.at.tokens = event.GetOffset() + uint64(len(event.GetTokens().GetTokenIds()))
		return s.add(index, event.GetTokens().GetText(), event.GetTokens().GetLogprobs())
	}
	// Text that was held back goes before the end.
	s.at = place{event.GetOffset(), endText}
	if !s.parsed.empty {
		if err := s.addLast(index, event.GetFinished().GetText()); err != nil {
			return err
		}
	}
	s.at.end = endReason
	c := s.end(index)
	if s.parsed.chat {
		c.Delta = new(delta)
	} else {
		c.Text = new(string)
	}
	return s.send(c)
}

// begin sends the first message of an answer: the role, or the echo of the prompt.
func (s *stream) begin(index int) error {
	if s.resumed {
		if s.from.end > 0 || s.parsed.tools != nil {
			return nil // perhaps no event is left to send
		}
		return s.exchange.open()
	}
	c := choice{Index: index}
	if s.parsed.chat {
		c.Delta = &delta{Role: "assistant", Content: new(string)}
		return s.send(c)
	}
	if echo := s.echo(index); echo != "" && s.parsed.echoTop == nil {
		c.Text = &echo
		err := s.send(c)
		s.echoSent(index)
		return err
	}
	// A completion without an echo sends only the headers.
	return s.exchange.open()
}

// scored accounts for the memory of a prompt's log probabilities, which note has kept.
func (s *stream) scored(e *inferencev1.PromptLogprobs) error {
	return s.take(scoredBytes(e.GetLogprobs()), true)
}

// echoScored sends the prompt with its log probabilities before the answer.
func (s *stream) echoScored(index int) error {
	p := &s.answers[index]
	if s.parsed.echoTop == nil || p.scores == nil {
		return nil
	}
	tokens, end := echoed(p.scores, *s.parsed.echoTop, s.echo(index))
	taken := p.scoredBytes()
	p.scores, p.offset = nil, end
	c := s.text(index, s.echo(index))
	c.Logprobs = &tokens
	if err := s.send(c); err != nil {
		return err
	}
	s.memory.give(taken)
	s.echoSent(index)
	return nil
}

// echoSent lets go of an echo, if the last answer that has it has sent it.
func (s *stream) echoSent(index int) {
	s.buffer = nil // it has grown to the length of the echo
	s.answers[index].echoed = true
	for i := range s.parsed.n {
		if !s.answers[index-index%s.parsed.n+i].echoed {
			return
		}
	}
	echo := &s.parsed.echoes[index/s.parsed.n]
	s.memory.give(echoCopies * int64(len(*echo)))
	*echo = ""
}

// addLast sends the text that was held back until the end.
func (s *stream) addLast(index int, text string) error {
	if calls := s.answers[index].calls; calls != nil {
		if content, made := calls.delta(calls.add(text, true)); content != "" || len(made) > 0 {
			return s.send(s.made(index, content, made))
		}
		return nil
	}
	if text == "" {
		return nil
	}
	return s.add(index, text, nil)
}

// add sends text. Tokens whose text is held back go out only if they have log probabilities.
func (s *stream) add(index int, text string, probabilities []*inferencev1.TokenLogprobs) error {
	p := &s.answers[index]
	var made []toolCall
	if p.calls != nil {
		text, made = p.calls.delta(p.calls.add(text, false))
	}
	if text == "" && len(made) == 0 && len(probabilities) == 0 && !s.parsed.eachUsage {
		return nil
	}
	if len(made) == 0 && len(probabilities) == 0 && !s.parsed.eachUsage {
		return s.addText(index, text)
	}
	c := s.text(index, text)
	if len(made) > 0 {
		c = s.made(index, text, made)
	}
	if s.parsed.logprobs && len(probabilities) > 0 {
		p.chat, p.tokens = chatLogprob{}, tokenLogprobs{}
		p.add(probabilities, s.parsed.chat)
		c.Logprobs = p.logprobs(s.parsed.chat)
	}
	return s.send(c)
}

// text is a choice with text alone.
func (s *stream) text(index int, text string) choice {
	c := choice{Index: index}
	if s.parsed.chat {
		c.Delta = &delta{Content: &text}
	} else {
		c.Text = &text
	}
	return c
}

// made is a choice with pieces of tool calls, and content if there is any.
func (s *stream) made(index int, content string, made []toolCall) choice {
	c := choice{Index: index, Delta: new(delta)}
	if content != "" {
		c.Delta.Content = &content
	}
	if len(made) > 0 {
		c.Delta.calls = s.parsed.said(made)
	}
	return c
}

// addText sends text in the message of the answer's piece, whose other parts are constant once
// the answer is accepted.
func (s *stream) addText(index int, text string) error {
	if s.pieces == nil {
		s.pieces = make([]piece, len(s.answers))
	}
	p := &s.pieces[index]
	if p.before == nil {
		const mark, written = "\x01", `"\u0001"`
		whole, err := marshal(s.message(s.text(index, mark)))
		if err != nil {
			return err
		}
		at := bytes.LastIndex(whole, []byte(written)) // what follows it is constant
		p.before = append([]byte("data: "), whole[:at]...)
		p.after = append(slices.Clone(whole[at+len(written):]), "\n\n"...)
	}
	s.buffer = append(s.identify(), p.before...)
	s.buffer = appendJSON(s.buffer, text)
	s.buffer = append(s.buffer, p.after...)
	return s.write()
}

// send sends one message with one choice.
func (s *stream) send(c choice) error { return s.event(s.message(c)) }

// message is a message with one choice.
func (s *stream) message(c choice) answer {
	out := s.head("chat.completion.chunk", "text_completion")
	out.Choices = append(out.Choices, c)
	switch {
	case s.parsed.eachUsage:
		out.Usage = &maybeUsage{s.usage()}
	case s.parsed.usage:
		out.Usage = &maybeUsage{}
	}
	return out
}

func (s *stream) event(out answer) error {
	body, err := marshal(out)
	if err != nil {
		return err
	}
	return s.data(body)
}

// data sends an event that is encoded already.
func (s *stream) data(data []byte) error {
	s.buffer = append(append(append(s.identify(), "data: "...), data...), "\n\n"...)
	return s.write()
}

// identify begins an event in the buffer, with its id if it has one.
func (s *stream) identify() []byte {
	var head [chunkHead]byte
	s.buffer = append(s.buffer[:0], head[:]...)
	if s.request == "" {
		return s.buffer
	}
	return append(appendEventID(append(s.buffer, "id: "...), s.request, s.at), '\n')
}

// write sends the event in the buffer, unless a resumed client has it already.
func (s *stream) write() error {
	if s.resumed && (s.at.tokens < s.from.tokens || s.at.tokens == s.from.tokens && s.at.end <= s.from.end) {
		return nil
	}
	if s.isNow {
		s.buffer = append(s.buffer, "\r\n"...)
		return s.exchange.lineNow(s.now, s.buffer)
	}
	return s.exchange.line(s.buffer[chunkHead:])
}

// finish ends a stream that went well.
func (s *stream) finish() error {
	s.at.end = endUsage
	if s.parsed.usage {
		out := s.head("chat.completion.chunk", "text_completion")
		out.Usage = &maybeUsage{s.assembly.usage()}
		if err := s.event(out); err != nil {
			return err
		}
	}
	s.at.end = endDone
	return s.data([]byte("[DONE]"))
}
