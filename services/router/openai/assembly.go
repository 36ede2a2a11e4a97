package openai

import (
	"cmp"
	"slices"
	"strings"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
)

// assembly makes OpenAI's objects of the events of a request.
type assembly struct {
	memory      *memoryShare // the request's part of it
	parsed      *parsedRequest
	exchange    *exchange
	created     int64
	model       string
	fingerprint string
	answers     []progress
}

// progress is how far one answer is.
type progress struct {
	text     strings.Builder
	chat     chatLogprob
	tokens   tokenLogprobs
	offset   int // of the next token in the text, characters
	count    uint32
	prompt   uint32
	cached   uint32
	drafts   uint32 // drafted tokens, of which accepted were right
	accepted uint32
	scores   []scored // tokens of the prompt
	sum      float64  // of the log probabilities of the answer's tokens
	finished string
	echoed   bool         // its echo is sent
	calls    *answerCalls // nil: there can be none
	timing   map[string]float64
	route    *route
}

// note takes in what an event says of the request itself. The text is for others.
func (a *assembly) note(index int, event *inferencev1.GenerateEvent) {
	p := &a.answers[index]
	switch {
	case event.GetAccepted() != nil:
		p.prompt = event.GetAccepted().GetPromptTokens()
		if id := event.GetAccepted().GetRequestId(); id != "" && index == 0 {
			a.exchange.id = id // another one, if a request had that already
		}
		p.calls = a.parsed.expectCalls(event.GetAccepted())
		if secret := event.GetAccepted().GetSecret(); secret != "" { // an answer that computes nothing has none
			a.exchange.secret = secret
		}
		for _, field := range event.GetAccepted().GetIgnored() {
			a.exchange.ignored.add(a.parsed.name(field))
		}
		if a.model == "" {
			a.model = event.GetAccepted().GetModel()
			a.fingerprint = event.GetAccepted().GetSystemFingerprint()
		}
	case event.GetTokens() != nil:
		p.count += uint32(len(event.GetTokens().GetTokenIds()))
	case event.GetPromptLogprobs() != nil:
		p.score(event.GetPromptLogprobs())
	case event.GetFinished() != nil:
		p.finished = api.Name(event.GetFinished().GetReason())
		u := event.GetFinished().GetUsage()
		p.prompt, p.cached, p.count = u.GetPromptTokens(), u.GetCachedTokens(), u.GetCompletionTokens()
		if a.parsed.empty { // a prompt was scored, which takes a token
			p.finished, p.count = api.Name(inferencev1.FinishReason_FINISH_REASON_LENGTH), 0
		}
		p.drafts, p.accepted = u.GetDraftTokens(), min(u.GetAcceptedDraftTokens(), u.GetDraftTokens())
		if a.parsed.timing {
			p.timing, p.route = timingOf(event.GetFinished().GetTimings()), routeOf(event.GetFinished().GetRoute())
		}
	}
}

// collect takes in an event of an answer that is sent as a whole, if there is memory for it.
func (a *assembly) collect(index int, event *inferencev1.GenerateEvent) error {
	a.note(index, event)
	if err := a.keep(event); err != nil {
		return err
	}
	p := &a.answers[index]
	for _, l := range event.GetTokens().GetLogprobs() {
		p.sum += float64(l.GetLogprob())
	}
	if a.parsed.empty {
		return nil
	}
	text := event.GetTokens().GetText() + event.GetFinished().GetText()
	if p.calls != nil {
		text = p.calls.collect(p.calls.add(text, event.GetFinished() != nil))
	}
	p.text.WriteString(text)
	if a.parsed.logprobs {
		p.add(event.GetTokens().GetLogprobs(), a.parsed.chat)
	}
	return nil
}

// keep takes the memory for what an event says.
func (a *assembly) keep(event *inferencev1.GenerateEvent) error {
	bytes := 3 * int64(len(event.GetTokens().GetText())+len(event.GetFinished().GetText()))
	bytes += scoredBytes(event.GetPromptLogprobs().GetLogprobs())
	if a.parsed.logprobs {
		bytes += scoredBytes(event.GetTokens().GetLogprobs())
	}
	return a.take(bytes, event.GetPromptLogprobs() != nil)
}

// take takes memory for answers, or for what they say of prompts.
func (a *assembly) take(bytes int64, prompt bool) error {
	switch {
	case a.memory.bytes+bytes > a.memory.most:
		return a.parsed.tooLarge(prompt)
	case !a.memory.take(bytes):
		return full()
	}
	return nil
}

// keepPrompts takes the memory for what a whole answer says of its prompts: each choice says it again.
func (a *assembly) keepPrompts() error {
	bytes := -a.parsed.echoBytes() // are held already
	for _, i := range a.shown() {
		bytes += echoCopies * int64(len(a.echo(i)))
		if a.parsed.echoTop == nil && (a.parsed.promptTop == nil || a.parsed.chat) {
			continue
		}
		bytes += a.answers[i-i%a.parsed.n].scoredBytes()
	}
	return a.take(bytes, true)
}

// add takes in how likely tokens were.
func (p *progress) add(tokens []*inferencev1.TokenLogprobs, chat bool) {
	if chat {
		p.chat.add(tokens)
	} else {
		p.offset = p.tokens.add(tokens, p.offset)
	}
}

// whole is the whole answer.
func (a *assembly) whole() answer {
	out := a.head("chat.completion", "text_completion")
	for index, i := range a.shown() {
		p := &a.answers[i]
		c := a.end(i)
		c.Index = index
		text := a.echo(i) + p.text.String()
		if a.parsed.chat {
			c.Message = &message{Role: "assistant", Content: &text}
			if p.calls != nil && len(p.calls.made) > 0 {
				c.Message.calls = a.parsed.said(p.calls.made)
				if text == "" {
					c.Message.Content = nil
				}
			}
		} else {
			c.Text = &text
		}
		if a.parsed.logprobs {
			c.Logprobs = p.logprobs(a.parsed.chat)
		}
		scores := a.answers[i-i%a.parsed.n].scores
		if top := a.parsed.echoTop; top != nil {
			whole, end := echoed(scores, *top, a.echo(i))
			whole.then(&p.tokens, end)
			c.Logprobs = &whole
		}
		switch top := a.parsed.promptTop; {
		case top == nil:
		case a.parsed.chat:
			out.PromptLogprobs = ofPrompt(scores, *top)
		default:
			c.PromptLogprobs = ofPrompt(scores, *top)
		}
		out.Choices = append(out.Choices, c)
	}
	out.Usage = &maybeUsage{a.usage()}
	return out
}

// shown are the answers that the client gets, in this order: of each prompt the best, if not all.
func (a *assembly) shown() (out []int) {
	for first := 0; first < len(a.answers); first += a.parsed.n {
		of := make([]int, a.parsed.n)
		for i := range of {
			of[i] = first + i
		}
		if a.parsed.shown < a.parsed.n {
			slices.SortStableFunc(of, func(x, y int) int { return cmp.Compare(a.answers[y].mean(), a.answers[x].mean()) })
		}
		out = append(out, of[:a.parsed.shown]...)
	}
	return out
}

// mean is the mean log probability of an answer's tokens, by which answers are compared.
func (p *progress) mean() float64 { return p.sum / float64(max(p.count, 1)) }

// end is a choice that has ended, without its text.
func (a *assembly) end(index int) choice {
	p := &a.answers[index]
	reason := a.parsed.reason(p.finished, p.calls)
	return choice{Index: index, FinishReason: &reason, Timing: p.timing, Route: p.route}
}

// echo is the prompt to say before an answer.
func (a *assembly) echo(index int) string {
	if a.parsed.echoes == nil {
		return ""
	}
	return a.parsed.echoes[index/a.parsed.n]
}

// logprobs are those collected, never null.
func (p *progress) logprobs(chat bool) any {
	if chat {
		if p.chat.Content == nil {
			p.chat.Content = []chatToken{}
		}
		return &p.chat
	}
	if p.tokens.Tokens == nil {
		p.tokens = tokenLogprobs{Tokens: []string{}, Logprobs: []*float64{}, Top: []map[string]float64{}, Offsets: []int{}}
	}
	return &p.tokens
}

// head is an answer without choices.
func (a *assembly) head(chat, completion string) answer {
	object, id := completion, "cmpl-"+a.exchange.id
	if a.parsed.chat {
		object, id = chat, "chatcmpl-"+a.exchange.id
	}
	return answer{ID: id, Object: object, Created: a.created, Model: a.model, Fingerprint: a.fingerprint, Choices: []choice{}}
}

// usage counts the tokens so far: those of a prompt once, however many answers it
// has.
func (a *assembly) usage() *usage {
	u := &usage{Details: new(promptDetails)}
	for i := range a.answers {
		p := &a.answers[i]
		if i%a.parsed.n == 0 {
			u.Prompt += p.prompt
			u.Details.Cached += p.cached
		}
		u.Completion += p.count
		if p.drafts > 0 {
			if u.CompletionDetails == nil {
				u.CompletionDetails = new(completionDetails)
			}
			u.CompletionDetails.Accepted += p.accepted
			u.CompletionDetails.Rejected += p.drafts - p.accepted
		}
	}
	u.Total = u.Prompt + u.Completion
	return u
}
