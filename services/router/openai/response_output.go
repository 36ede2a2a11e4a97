package openai

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/toolcalls"
)

// output makes the items of a response of its text, as that comes, and tells of them.
type output struct {
	assembly    *assembly
	say         func(responseEvent) error // sends an event; nil: the answer goes as a whole
	items       []outputItem              // that have ended
	open        *outputItem               // the one after them; nil: none has begun
	text        strings.Builder           // of it, or its arguments
	likelihoods []chatToken               // likewise
	pending     []chatToken               // of tokens that may be of a message or a call
}

// take takes in an event of the answer, and keeps its text if there is memory for it: the last
// events of a stream have all of it, too.
func (o *output) take(event *inferencev1.GenerateEvent) error {
	o.assembly.note(0, event)
	if err := o.assembly.keep(event); err != nil {
		return err
	}
	var likelihoods chatLogprob
	likelihoods.add(event.GetTokens().GetLogprobs())
	text, calls := event.GetTokens().GetText()+event.GetFinished().GetText(), o.assembly.answers[0].calls
	if calls == nil {
		return o.write(text, likelihoods.Content)
	}
	o.pending = append(o.pending, likelihoods.Content...)
	last := event.GetFinished() != nil
	for _, said := range calls.add(text, last) {
		if err := o.read(calls, said, last); err != nil {
			return err
		}
		o.pending = nil
	}
	return nil
}

// read takes in what text says of a call, or between calls; last: the answer has ended.
func (o *output) read(calls *answerCalls, said toolcalls.Event, last bool) error {
	switch said.Kind {
	case toolcalls.Text:
		return o.write(said.Text, o.pending)
	case toolcalls.Begin:
		if err := o.end(statusCompleted); err != nil {
			return err
		}
		return o.begin(outputItem{
			ID: o.id("fc_"), Type: typeCall, Name: said.Text, CallID: calls.format.CallID(calls.seed, said.Call), Arguments: new(string),
		})
	case toolcalls.Arguments:
		o.text.WriteString(said.Text)
		return o.tell(o.ofItem(responseEvent{Type: "response.function_call_arguments.delta", ItemID: o.open.ID, Delta: &said.Text}))
	}
	if last && calls.parser.Cut() {
		return o.end(statusIncomplete)
	}
	return o.end(statusCompleted)
}

// write adds text to the message. Tokens whose text is held back are told of only if something is
// said of them.
func (o *output) write(text string, likelihoods []chatToken) error {
	if text == "" && len(likelihoods) == 0 {
		return nil
	}
	if err := o.message(); err != nil {
		return err
	}
	o.text.WriteString(text)
	o.likelihoods = append(o.likelihoods, likelihoods...)
	return o.tell(o.ofPart(responseEvent{Type: eventTextDelta, Delta: &text, Logprobs: new(logprobsOf(likelihoods))}))
}

// message begins a message, if none is open.
func (o *output) message() error {
	if o.open != nil && o.open.Type == typeMessage {
		return nil
	}
	if err := o.end(statusCompleted); err != nil {
		return err
	}
	if err := o.begin(outputItem{ID: o.id("msg_"), Type: typeMessage, Role: "assistant", Content: &[]outputText{}}); err != nil {
		return err
	}
	return o.tell(o.ofPart(responseEvent{Type: "response.content_part.added", Part: new(outputTextOf("", nil))}))
}

// begin begins an item.
func (o *output) begin(item outputItem) error {
	item.Status = statusInProgress
	o.open = &item
	o.text.Reset()
	o.likelihoods = nil
	return o.tell(o.ofItem(responseEvent{Type: "response.output_item.added", Item: &item}))
}

// end ends the item that is open, if one is.
func (o *output) end(status string) error {
	if o.open == nil {
		return nil
	}
	item := o.current(status)
	var events []responseEvent
	if item.Type == typeCall {
		events = append(events, o.ofItem(responseEvent{Type: "response.function_call_arguments.done", ItemID: item.ID, Name: item.Name, Arguments: item.Arguments}))
	} else {
		part := (*item.Content)[0]
		events = append(events,
			o.ofPart(responseEvent{Type: "response.output_text.done", Text: &part.Text, Logprobs: &part.Logprobs}),
			o.ofPart(responseEvent{Type: "response.content_part.done", Part: &part}))
	}
	for _, event := range append(events, o.ofItem(responseEvent{Type: "response.output_item.done", Item: &item})) {
		if err := o.tell(event); err != nil {
			return err
		}
	}
	o.items, o.open = append(o.items, item), nil
	return nil
}

// current is the item that is open, with what has come of it.
func (o *output) current(status string) outputItem {
	item := *o.open
	item.Status = status
	if item.Type == typeCall {
		item.Arguments = new(o.text.String())
	} else {
		item.Content = &[]outputText{outputTextOf(o.text.String(), o.likelihoods)}
	}
	return item
}

// soFar are all items of an answer that failed.
func (o *output) soFar() []outputItem {
	items := append([]outputItem{}, o.items...)
	if o.open != nil {
		items = append(items, o.current(statusIncomplete))
	}
	return items
}

// finish ends the output. An answer without text is an empty message.
func (o *output) finish() error {
	if len(o.items) == 0 && o.open == nil {
		if err := o.message(); err != nil {
			return err
		}
	}
	return o.end(o.assembly.ended())
}

func (o *output) tell(event responseEvent) error {
	if o.say == nil {
		return nil
	}
	return o.say(event)
}

// ofItem is an event of the item that is open.
func (o *output) ofItem(event responseEvent) responseEvent {
	event.OutputIndex = new(len(o.items))
	return event
}

// ofPart is an event of the part of the message that is open.
func (o *output) ofPart(event responseEvent) responseEvent {
	event.ItemID, event.ContentIndex = o.open.ID, new(int)
	return o.ofItem(event)
}

// id is that of the next item, made of the request's.
func (o *output) id(kind string) string {
	id := kind + o.assembly.exchange.id
	if n := len(o.items); n > 0 {
		id += "_" + strconv.Itoa(n)
	}
	return id
}

// textDelta is the event of text alone, which nearly all events are: only the numbers and the
// texts of an item's differ.
type textDelta struct {
	item                    string // whose it is
	before, between, behind []byte // the number, it and the text, the text
}

// prepare keeps what all events with the text of an item have.
func (d *textDelta) prepare(event responseEvent) error {
	if d.item == event.ItemID {
		return nil
	}
	const mark, number = `"\u0001"`, `"sequence_number":0`
	event.Delta = new("\x01")
	whole, err := marshal(event)
	if err != nil {
		return err
	}
	i := bytes.Index(whole, []byte(number)) + len(number) - 1
	j := bytes.LastIndex(whole, []byte(mark))
	d.item = event.ItemID
	d.before = append([]byte("event: "+event.Type+"\ndata: "), whole[:i]...)
	d.between = slices.Clone(whole[i+1 : j])
	d.behind = append(slices.Clone(whole[j+len(mark):]), "\n\n"...)
	return nil
}

// append appends the event.
func (d *textDelta) append(to []byte, sequence int, text string) []byte {
	to = strconv.AppendInt(append(to, d.before...), int64(sequence), 10)
	return append(appendJSON(append(to, d.between...), text), d.behind...)
}
