package scheduler

import (
	"math/rand/v2"
	"time"

	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// request is one of a run, and what became of it.
type request struct {
	index     int
	due       time.Duration // from the start of the run
	long      bool
	prompt    int
	output    int // tokens until it ends
	maxTokens int // that it may generate

	id    scheduler.SequenceID
	drawn int           // tokens
	last  time.Duration // when the last was
	high  int           // positions computed at least once
}

// arrivals are the requests of a run and when they come.
type arrivals interface {
	// due is when the next request comes; false if none does, or it is not known yet.
	due() (time.Duration, bool)
	take() *request
	// stepped is told of a step when it is done, after its tokens were counted.
	stepped(s *stepKind, now time.Duration)
	// over: no request comes any more.
	over() bool
	// cut are those to be cancelled when it is over.
	cut() []*request
}

func newArrivals(p Plan) arrivals {
	if p.Scenario == LongPrompt {
		return &longArrivals{plan: p}
	}
	s := &mixArrivals{plan: p, random: source(p.Seed, 0)}
	s.draw()
	return s
}

// source is the numbers for one purpose: 0 is arrivals and lengths, the others the
// tokens of a request.
func source(seed, purpose uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, purpose)) }

// mixArrivals is Mix: the same requests at the same times, whatever becomes of them.
type mixArrivals struct {
	plan   Plan
	random *rand.Rand
	count  int
	at     float64 // seconds
	next   *request
}

func (s *mixArrivals) draw() {
	s.next = nil
	if s.count == s.plan.Requests {
		return
	}
	s.at += s.random.ExpFloat64() / s.plan.Rate
	r := &request{index: s.count, due: time.Duration(s.at * float64(time.Second)), maxTokens: s.plan.MaxTokens}
	r.long = s.random.Float64() < s.plan.LongShare
	mean := s.plan.ShortTokens
	if r.long {
		mean = s.plan.LongTokens
	}
	r.prompt, r.output = s.length(mean), s.length(s.plan.OutputTokens)
	s.next = r
	s.count++
}

func (s *mixArrivals) length(mean int) int {
	from := least(mean)
	return from + s.random.IntN(most(mean)-from+1)
}

func (s *mixArrivals) due() (time.Duration, bool) {
	if s.next == nil {
		return 0, false
	}
	return s.next.due, true
}

func (s *mixArrivals) take() *request {
	r := s.next
	s.draw()
	return r
}

func (s *mixArrivals) stepped(*stepKind, time.Duration) {}
func (s *mixArrivals) over() bool                       { return s.next == nil }
func (s *mixArrivals) cut() []*request                  { return nil }

type longArrivals struct {
	plan    Plan
	decodes []*request
	quiet   int // steps that all of them decoded alone
	long    *request
	next    *request // the long one, when it is due
}

func (s *longArrivals) due() (time.Duration, bool) {
	switch {
	case len(s.decodes) < s.plan.Decodes:
		return 0, true
	case s.next != nil:
		return s.next.due, true
	}
	return 0, false
}

func (s *longArrivals) take() *request {
	if r := s.next; r != nil {
		s.next = nil
		return r
	}
	n := s.plan.decodeTokens()
	r := &request{index: len(s.decodes), prompt: s.plan.ShortTokens, output: n, maxTokens: n}
	s.decodes = append(s.decodes, r)
	return r
}

func (s *longArrivals) stepped(kind *stepKind, now time.Duration) {
	if kind.prompts == 0 && kind.decodes == s.plan.Decodes {
		s.quiet++
	}
	if s.long == nil && s.quiet == s.plan.BeforeSteps {
		s.long = &request{index: len(s.decodes), due: now, long: true, prompt: s.plan.LongTokens, output: 1, maxTokens: 1}
		s.next = s.long
	}
}

func (s *longArrivals) over() bool      { return s.long != nil && s.long.drawn > 0 }
func (s *longArrivals) cut() []*request { return s.decodes }

// submission is a request as the scheduler gets it. Its tokens are random, so no two
// share a prefix. They end with a token that no engine draws: see end.
func (r *request) submission(seed uint64, vocabulary int) scheduler.Request {
	random := source(seed, uint64(r.index)+1)
	tokens := make([]int32, r.prompt)
	for i := range tokens {
		tokens[i] = int32(random.IntN(vocabulary))
	}
	return scheduler.Request{
		ID: r.id, Tokens: tokens, MaxTokens: r.maxTokens, Stop: []int32{int32(vocabulary)},
		Sampling: sampler.Params{Seed: uint64(r.index)},
	}
}
