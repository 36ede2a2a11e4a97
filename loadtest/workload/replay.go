package workload

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"github.com/tandem-serving/tandem/loadtest/workload/trace"
)

// replay sends a trace's requests.
type replay struct {
	*maker
	file *trace.File
	// arrivals are used in closed loop and for traces without times.
	arrivals *arrivals
	until    time.Duration
	kinds    *rand.Rand
	turns    *rand.Rand
	session  int
	parts    []part
	// nonce comes before recorded texts, which are the same in every step.
	nonce string
}

func newReplay(m *maker, a *arrivals, p Params) (*replay, error) {
	file, err := m.spec.openTrace(m.spec.format)
	if err != nil {
		return nil, err
	}
	seed := m.chance
	nonce := ""
	if p.Step > 0 {
		nonce = fmt.Sprintf("%08x ", uint32(mix(m.spec.Seed+mix(m.step))))
	}
	return &replay{
		maker: m, file: file, arrivals: a, until: p.Duration, nonce: nonce,
		kinds: random(seed, forClasses, 0, 0), turns: random(seed, forTurns, 0, 0),
	}, nil
}

// Close closes the trace.
func (r *replay) Close() error { return r.file.Close() }

func (r *replay) Next() (*Request, error) {
	if limit := r.spec.TraceLimit; limit > 0 && r.session >= limit {
		return nil, io.EOF
	}
	entry, err := r.file.Next()
	if err != nil {
		return nil, err
	}
	due, ok := r.due(entry)
	if !ok {
		return nil, io.EOF
	}
	class := r.spec.classes.draw(r.kinds)
	var q *Request
	if len(entry.Turns) > 0 {
		q = r.recorded(entry, class)
	} else {
		q = r.made(entry, class)
	}
	q.Due = due
	r.session++
	return q, nil
}

func (r *replay) due(entry trace.Entry) (time.Duration, bool) {
	if !r.file.Format().Timed() || r.arrivals.closed {
		return r.arrivals.next()
	}
	due := float64(entry.At) / r.spec.Speed
	if due > math.MaxInt64/2 || r.until > 0 && time.Duration(due) > r.until {
		return 0, false
	}
	return time.Duration(due), true
}

// made makes a request of an entry with only lengths, and perhaps blocks.
func (r *replay) made(entry trace.Entry, class int) *Request {
	prompt := r.scale(entry)
	prompt, output, cut := fit(prompt, r.spec.scale(entry.OutputTokens), r.context)
	if cut {
		r.cut.Add(1)
	}
	r.parts = r.parts[:0]
	left := prompt
	for _, id := range entry.Blocks {
		if left == 0 {
			break
		}
		tokens := min(r.spec.blockTokens(), left)
		r.parts = append(r.parts, part{forBlocks, id, 0, tokens})
		left -= tokens
	}
	if left > 0 {
		r.parts = append(r.parts, part{forPrompts, uint64(r.session), 0, left})
	}
	return r.request(r.session, 0, class, r.prompt(part{}, r.parts...), output)
}

// scale is a prompt's scaled length. Whole blocks are scaled alike, so that shared
// prefixes remain shared.
func (r *replay) scale(entry trace.Entry) int {
	if entry.Blocks == nil {
		return r.spec.scale(entry.PromptTokens)
	}
	block := r.spec.blockTokens()
	whole, rest := entry.PromptTokens/trace.BlockTokens, entry.PromptTokens%trace.BlockTokens
	if rest > 0 {
		rest = min(r.spec.scale(rest), block)
	}
	return min(max(whole*block+rest, 1), maxCount)
}

// recorded is the recorded first turn of a conversation. Later turns contain the server's
// answers.
func (r *replay) recorded(entry trace.Entry, class int) *Request {
	prose := r.spec.prose
	first := r.scaled(entry.Turns[0])
	if entry.System != "" {
		entry.System = r.nonce + entry.System
	} else {
		first.text = r.nonce + first.text
		first.tokens = prose.tokens(first.text)
	}
	system := prose.cut(entry.System, r.context/2)
	systemTokens := prose.tokens(system)
	tokens, output, cut := fit(first.tokens, first.output, r.context-systemTokens)
	if cut || len(system) < len(entry.System) {
		r.cut.Add(1)
	}
	q := r.request(r.session, 0, class, opening(system, prose.cut(first.text, tokens)), output)
	turns := len(entry.Turns)
	if r.spec.Turns.IsSet() {
		turns = min(turns, r.spec.Turns.count(r.turns))
	}
	session := r.session
	conversation{
		maker: r.maker, session: session, class: class, turns: turns, tokens: systemTokens + tokens,
		say: func(turn int) utterance {
			said := r.scaled(entry.Turns[turn])
			said.think = r.think(random(r.chance, forTurns, uint64(session), uint64(turn)))
			return said
		},
	}.attach(q)
	return q
}

// scaled is a recorded turn, scaled.
func (r *replay) scaled(turn trace.Turn) utterance {
	prose := r.spec.prose
	tokens := prose.tokens(turn.User)
	if scaled := r.spec.scale(tokens); scaled < tokens {
		turn.User, tokens = prose.cut(turn.User, scaled), scaled
	}
	return utterance{text: turn.User, tokens: tokens, output: r.spec.scale(prose.tokens(turn.Reply))}
}
