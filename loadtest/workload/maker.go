package workload

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
)

// maker makes a run's prompts and requests. It is safe for concurrent use, since the
// receiver of an answer makes the next turn; only its counters change.
type maker struct {
	spec     *Spec
	step     uint64
	chance   uint64 // seed of everything but prompt contents
	text     bool
	alphabet alphabet // 0 for text
	context  int

	requests, cut, short, textless, substitutes atomic.Int64
}

func newMaker(s *Spec, p Params) (*maker, error) {
	m := &maker{spec: s, step: uint64(p.Step), chance: repeated(s.Seed, p.Repeat), text: s.text(p), context: s.context(p)}
	if m.context < s.SharedPrefixTokens+2 {
		return nil, fmt.Errorf("--shared-prefix-tokens is %d and the context has %d tokens: leave room for a prompt and an answer", s.SharedPrefixTokens, m.context)
	}
	if m.text {
		return m, nil
	}
	vocabulary := s.vocabulary(p)
	if vocabulary == 0 {
		return nil, fmt.Errorf("--prompt-kind ids: the server does not say how many tokens its vocabulary has: add --vocabulary-size, or use --prompt-kind text")
	}
	var err error
	m.alphabet, err = newAlphabet(vocabulary)
	return m, err
}

// part is a named piece of a prompt. Equal names have equal contents; with fewer tokens,
// a prefix.
type part struct {
	purpose, thing, number uint64
	tokens                 int
}

func (m *maker) seeded(pcg *rand.PCG, p part) {
	seeded(pcg, m.spec.Seed+mix(m.step), p.purpose, p.thing, p.number)
}

func (m *maker) appendIDs(ids []uint32, p part) []uint32 {
	var pcg rand.PCG
	m.seeded(&pcg, p)
	return m.alphabet.append(ids, &pcg, p.tokens)
}

func (m *maker) appendText(text []byte, p part) []byte {
	var pcg rand.PCG
	m.seeded(&pcg, p)
	return m.spec.prose.append(text, &pcg, p.tokens)
}

// messageSeparator separates a conversation's messages in flat text.
const messageSeparator = "\n\n"

// prompt is a first prompt: a system prompt, if it has tokens, and the user's message.
func (m *maker) prompt(system part, user ...part) Prompt {
	total := system.tokens
	for _, p := range user {
		total += p.tokens
	}
	if !m.text {
		ids := make([]uint32, 0, total)
		if system.tokens > 0 {
			ids = m.appendIDs(ids, system)
		}
		for _, p := range user {
			ids = m.appendIDs(ids, p)
		}
		return Prompt{TokenIDs: ids}
	}
	var prefix string
	if system.tokens > 0 {
		prefix = string(m.appendText(nil, system))
	}
	return opening(prefix, m.userText(user...))
}

func (m *maker) userText(user ...part) string {
	total := 0
	for _, p := range user {
		total += p.tokens
	}
	text := make([]byte, 0, m.spec.prose.bytes(total)+128)
	for _, p := range user {
		text = m.appendText(text, p)
	}
	return string(text)
}

// opening is a first prompt of text.
func opening(system, user string) Prompt {
	if system == "" {
		return Prompt{Text: user, Chat: []Message{{"user", user}}}
	}
	return Prompt{Text: system + messageSeparator + user, Chat: []Message{{"system", system}, {"user", user}}}
}

// request returns a request with everything that does not depend on its prompt.
func (m *maker) request(session, turn, class int, prompt Prompt, output int) *Request {
	m.requests.Add(1)
	s := m.spec
	r := &Request{
		Session: session, Turn: turn,
		Prompt: prompt, MaxTokens: output, Exact: s.Exact,
		Temperature: s.Temperature, Seed: mix(mix(s.Seed^mix(forSampling)+uint64(session)) + uint64(turn)),
		Priority: s.Priority, Tenant: s.Tenant, CacheSalt: s.CacheSalt,
	}
	if len(s.classes) > 0 {
		r.Class = s.classes[class].name
		if own := s.classes[class].priority; own != nil {
			r.Priority = *own
		}
	}
	return r
}

// think is the time before a turn.
func (m *maker) think(random *rand.Rand) time.Duration {
	if !m.spec.Think.IsSet() {
		return 0
	}
	return m.spec.Think.duration(random)
}

// Warnings lists what had to be changed or left out so far.
func (m *maker) Warnings() []Warning {
	var all []Warning
	add := func(count, of int64, format string, args ...any) {
		if count > 0 {
			all = append(all, Warning{Count: count, Of: of, Text: fmt.Sprintf(format, args...)})
		}
	}
	requests := m.requests.Load()
	cut, short, textless, substitutes := m.cut.Load(), m.short.Load(), m.textless.Load(), m.substitutes.Load()
	add(cut, requests, "requests were cut to fit the context of %d tokens", m.context)
	add(short, 0, "conversations ended early: the next turn would not have fitted the context of %d tokens", m.context)
	add(textless, 0, "conversations ended early: the answer had no text")
	add(substitutes, 0, "answers came without token ids: random ones stand for them in later turns")
	return all
}

// alphabet is the number of token ids used in prompts, from 0.
type alphabet uint32

// minAlphabet makes sixteen random tokens practically unique.
const minAlphabet = 16

func newAlphabet(vocabulary int) (alphabet, error) {
	if vocabulary < minAlphabet || int64(vocabulary) > 1<<32-1 {
		return 0, fmt.Errorf("a vocabulary of %d tokens: expected %d to 2^32-1; with fewer use --prompt-kind text", vocabulary, minAlphabet)
	}
	return alphabet(vocabulary), nil
}

// append appends n uniform ids. One 64-bit number gives two: each half times the span,
// shifted (Lemire, "Fast random integer generation in an interval", 2019, without
// rejection: probabilities differ by at most span/2^32). Fewer ids of the same sequence
// are a prefix of more.
func (a alphabet) append(ids []uint32, pcg *rand.PCG, n int) []uint32 {
	begin := len(ids)
	ids = slices.Grow(ids, n)[:begin+n]
	out, span := ids[begin:], uint64(a)
	for ; len(out) >= 2; out = out[2:] {
		bits := pcg.Uint64()
		out[0], out[1] = uint32((bits>>32)*span>>32), uint32((bits&0xFFFFFFFF)*span>>32)
	}
	if len(out) == 1 {
		out[0] = uint32((pcg.Uint64() >> 32) * span >> 32)
	}
	return ids
}
