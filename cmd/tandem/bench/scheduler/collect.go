package scheduler

import (
	"time"

	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// stepKind is what a step held.
type stepKind struct {
	decodes, prompts int  // sequences
	long             bool // a chunk of the long prompt of LongPrompt
}

// alone predicts the time of a step's decodes without its prompts.
type alone interface {
	predict(b *engine.Batch, parts []scheduler.Part) (time.Duration, bool)
	// observe is told how long a step without prompts took.
	observe(b *engine.Batch, took time.Duration)
}

// collector counts what the steps of one run do to its requests.
type collector struct {
	plan     Plan
	policy   Policy
	arrivals arrivals
	alone    alone

	requests []*request // by index, those that were submitted
	byID     map[scheduler.SequenceID]*request

	steps, mixed, sequences           int
	overBudget                        int
	worstOver                         time.Duration
	computed, again, tokens, finished int
	gaps, stalls                      time.Duration // sums
	ended                             time.Duration // of the last step

	ttft, ttftShort, ttftLong, itl, stall, added, before, during *stats.Histogram
}

func newCollector(p Plan, policy Policy, a alone) *collector {
	c := &collector{plan: p, policy: policy, arrivals: newArrivals(p), alone: a, byID: make(map[scheduler.SequenceID]*request)}
	for _, h := range []**stats.Histogram{&c.ttft, &c.ttftShort, &c.ttftLong, &c.itl, &c.stall, &c.added, &c.before, &c.during} {
		*h = stats.NewHistogram()
	}
	return c
}

// submitted takes a request into the run, under its id.
func (c *collector) submitted(r *request, id scheduler.SequenceID) {
	r.id = id
	c.byID[id] = r
	c.requests = append(c.requests, r)
}

// end makes the last token of each request one that stops it. With it every length is
// what was drawn for it, whatever the engine draws.
func (c *collector) end(b *engine.Batch, tokens []int32, stop int32) {
	for i := range b.Sequences {
		if s := b.Sequences[i].Sample; s != nil && int(s.Offset)+1 >= c.requests[s.Params.Seed].output {
			tokens[i] = stop
		}
	}
}

// step counts a step that was computed from began to ended.
func (c *collector) step(b *engine.Batch, parts []scheduler.Part, began, ended time.Duration) {
	var kind stepKind
	for i, part := range parts {
		r, work := c.byID[part.ID], &b.Sequences[i]
		end := work.Start + len(work.Tokens)
		c.computed += len(work.Tokens)
		c.again += max(min(end, r.high)-work.Start, 0)
		r.high = max(r.high, end)
		if part.Prompt {
			kind.prompts++
			kind.long = kind.long || r.long
		} else {
			kind.decodes++
		}
	}
	c.steps++
	c.sequences += len(parts)
	took := ended - began
	expected, known := c.alone.predict(b, parts)
	switch {
	case kind.prompts == 0:
		c.alone.observe(b, took)
	case kind.decodes > 0 && known:
		c.mixed++
		over := max(took-expected, 0)
		c.added.Record(over)
		if over -= c.policy.StepBudget; c.policy.StepBudget > 0 && over > 0 {
			c.overBudget++
			c.worstOver = max(c.worstOver, over)
		}
	}
	for i, part := range parts {
		if b.Sequences[i].Sample != nil {
			r := c.byID[part.ID]
			c.token(r, &kind, ended, expected, known)
			if r.drawn >= r.output {
				c.finished++
				delete(c.byID, part.ID)
			}
		}
	}
	c.ended = ended
	c.arrivals.stepped(&kind, ended)
}

// token counts one drawn in a step that without prompts would have taken expected.
func (c *collector) token(r *request, kind *stepKind, now, expected time.Duration, known bool) {
	c.tokens++
	r.drawn++
	gap := now - r.last
	r.last = now
	if r.drawn == 1 {
		c.ttft.Record(now - r.due)
		if r.long {
			c.ttftLong.Record(now - r.due)
		} else {
			c.ttftShort.Record(now - r.due)
		}
		return
	}
	c.itl.Record(gap)
	if known {
		stalled := max(gap-expected, 0)
		c.stall.Record(stalled)
		c.stalls += stalled
		c.gaps += gap
	}
	switch {
	case c.plan.Scenario != LongPrompt:
	case kind.long:
		c.during.Record(gap)
	case kind.prompts == 0 && kind.decodes == c.plan.Decodes:
		c.before.Record(gap)
	}
}

// byProfile predicts by the profile that steps take their time from.
type byProfile struct{ *latency.Profile }

func (p byProfile) predict(b *engine.Batch, parts []scheduler.Part) (time.Duration, bool) {
	return p.Predict(workOf(b, parts)), true
}

// workOf is the work of a batch, without the prompts among its parts; none: of all.
func workOf(b *engine.Batch, parts []scheduler.Part) (work latency.StepWork) {
	for i := range b.Sequences {
		if s := &b.Sequences[i]; len(parts) == 0 || !parts[i].Prompt {
			work.Add(s.Start, len(s.Tokens), s.Sample != nil)
		}
	}
	return work
}

func (byProfile) observe(*engine.Batch, time.Duration) {}

// learned predicts by the steps without prompts so far.
type learned struct{ steps latency.StepTime }

// learnedFrom is the number of steps from which on they are believed.
const learnedFrom = 16

func (l *learned) predict(b *engine.Batch, parts []scheduler.Part) (time.Duration, bool) {
	model := l.steps.Model()
	return model.Predict(workOf(b, parts)), model.Samples >= learnedFrom
}

func (l *learned) observe(b *engine.Batch, took time.Duration) {
	l.steps.Observe(workOf(b, nil), took)
}
