package workload

import (
	"io"
	"math/rand/v2"
)

// synthetic makes requests from distributions.
type synthetic struct {
	*maker
	arrivals *arrivals
	// Random numbers for each purpose.
	lengths, kinds, turns *rand.Rand
	session               int
}

func (s *synthetic) Next() (*Request, error) {
	due, ok := s.arrivals.next()
	if !ok {
		return nil, io.EOF
	}
	class := s.spec.classes.draw(s.kinds)
	drawn := s.spec.draw(s.lengths, class)
	prompt, output, cut := fit(drawn.prompt, drawn.output, s.context-s.spec.SharedPrefixTokens)
	if cut {
		s.cut.Add(1)
	}
	session := s.session
	s.session++
	var system part
	if s.spec.SharedPrefixTokens > 0 {
		which := s.kinds.Uint64N(uint64(s.spec.SharedPrefixes))
		system = part{forPrefixes, which, 0, s.spec.SharedPrefixTokens}
	}
	user := part{forPrompts, uint64(session), 0, prompt}
	q := s.request(session, 0, class, s.prompt(system, user), output)
	q.Due = due
	if s.spec.Turns.IsSet() {
		if turns := s.spec.Turns.count(s.turns); turns > 1 {
			conversation{
				maker: s.maker, session: session, class: class, turns: turns,
				tokens: system.tokens + prompt, say: s.invented(session, class),
			}.attach(q)
		}
	}
	return q, nil
}
