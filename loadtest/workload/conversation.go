package workload

import "time"

// utterance is a user's message in a later turn: recorded text, or a part to generate.
type utterance struct {
	text   string
	part   part
	tokens int
	output int
	think  time.Duration
}

// conversation has turns that depend on the answers before them.
type conversation struct {
	maker          *maker
	session, class int
	turns          int
	// tokens of the last prompt.
	tokens int
	// say returns the user's message of a turn.
	say func(turn int) utterance
}

// attach sets a request's Then, if the conversation has another turn.
func (c conversation) attach(q *Request) {
	if q.Turn+1 >= c.turns {
		return
	}
	prompt, output, turn := q.Prompt, q.MaxTokens, q.Turn+1
	q.Then = func(answer Answer) (*Request, time.Duration) { return c.next(prompt, output, turn, answer) }
}

// next returns a turn after the first, or none if the answer has no text, such as one that
// only reasons.
func (c conversation) next(prompt Prompt, output, turn int, answer Answer) (*Request, time.Duration) {
	if len(answer.TokenIDs) == 0 && answer.Text == "" {
		c.maker.textless.Add(1)
		return nil, 0
	}
	m := c.maker
	said := c.say(turn)
	answered := len(answer.TokenIDs)
	if answered == 0 {
		answered = m.spec.prose.tokens(answer.Text)
		if !m.text {
			if m.spec.Exact {
				answered = output
			}
			answered = min(answered, output)
		}
	}
	tokens := c.tokens + answered + said.tokens
	if tokens > m.context-said.output {
		m.short.Add(1)
		return nil, 0
	}
	if m.text {
		prompt = c.continueText(prompt, answer, said)
	} else {
		prompt = c.continueIDs(prompt, answer, answered, said, tokens)
	}
	c.tokens = tokens
	q := m.request(c.session, turn, c.class, prompt, said.output)
	c.attach(q)
	return q, said.think
}

func (c conversation) continueText(prompt Prompt, answer Answer, said utterance) Prompt {
	if said.text == "" {
		said.text = c.maker.userText(said.part)
	}
	chat := make([]Message, 0, len(prompt.Chat)+2)
	chat = append(append(chat, prompt.Chat...), Message{"assistant", answer.Text}, Message{"user", said.text})
	// The answer is appended unchanged: the server has the text so far cached.
	return Prompt{Text: prompt.Text + answer.Text + messageSeparator + said.text, Chat: chat}
}

func (c conversation) continueIDs(prompt Prompt, answer Answer, answered int, said utterance, tokens int) Prompt {
	ids := append(make([]uint32, 0, tokens), prompt.TokenIDs...)
	if len(answer.TokenIDs) > 0 {
		ids = append(ids, answer.TokenIDs...)
	} else {
		c.maker.substitutes.Add(1)
		ids = c.maker.appendIDs(ids, part{forAnswers, said.part.thing, said.part.number, answered})
	}
	return Prompt{TokenIDs: c.maker.appendIDs(ids, said.part)}
}

// invented returns the generated messages of a session's user.
func (m *maker) invented(session, class int) func(turn int) utterance {
	return func(turn int) utterance {
		random := random(m.chance, forTurns, uint64(session), uint64(turn))
		drawn := m.spec.draw(random, class)
		return utterance{
			part:   part{forPrompts, uint64(session), uint64(turn), drawn.prompt},
			tokens: drawn.prompt, output: drawn.output, think: m.think(random),
		}
	}
}
