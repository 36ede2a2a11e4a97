package speculation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/processor"
	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/drafting"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// Result is what was measured. Both ways gave the same tokens.
type Result struct {
	Plan
	Model   string `json:"model"`
	Threads int    `json:"threads"`
	ISA     string `json:"isa"`
	// PlainTokens and SpeculativeTokens are tokens a second in decode, without and with drafts,
	// over all rounds.
	PlainTokens       float64 `json:"plain_tokens_per_s"`
	SpeculativeTokens float64 `json:"speculative_tokens_per_s"`
	// Gains are, by round, the rate with drafts over that without; Gain is their median. Each round has
	// texts of its own, and what drafts gain differs with the text.
	Gain  float64   `json:"gain"`
	Gains []float64 `json:"gains"`
	// Drafts were verified, and Accepted of them right; Acceptance is the share of those that were
	// right among those before which no other was wrong.
	Drafts     int     `json:"drafts"`
	Accepted   int     `json:"accepted"`
	Acceptance float64 `json:"acceptance"`
	// DraftingShare is the share of the time with drafts that the draft model took.
	DraftingShare float64 `json:"drafting_share"`
	// TokensPerStep is how many tokens of a sequence a step with drafts allowed gave.
	TokensPerStep float64 `json:"tokens_per_step"`
}

// newEngine makes the engine, with the draft model's beside it, if there are weights of one.
func (p Plan) newEngine(weights, draft *cpu.Weights) (engine.Engine, error) {
	config := p.config()
	config.Threads = weights.Threads()
	e, err := weights.NewEngine(config)
	if err != nil || draft == nil {
		return e, err
	}
	config.MaxBatchTokens = max(drafting.ChunkTokens, config.MaxSequences)
	beside, err := draft.NewEngine(config)
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	both, err := drafting.New(e, beside, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, errors.Join(err, beside.Close(), e.Close())
	}
	return both, nil
}

// Measure measures with an engine of the weights, and those of a draft model, if the plan has
// one. progress hears of each round.
func Measure(ctx context.Context, weights, draft *cpu.Weights, plan Plan, progress func(done, total int64)) (result *Result, err error) {
	e, err := plan.newEngine(weights, draft)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if plan.ProcessorTime {
		runtime.LockOSThread() // the engine's one compute thread is the caller
		defer runtime.UnlockOSThread()
	}
	r := &Result{Plan: plan, Model: weights.Spec().Name, Threads: weights.Threads(), ISA: weights.ISA()}
	var schedulers [2]*scheduler.Scheduler
	for i := range schedulers {
		if schedulers[i], err = plan.newScheduler(e, i*plan.MaxDrafts); err != nil {
			return nil, err
		}
	}
	var all [2]run // of each way
	for round := range plan.Rounds {
		prompts, err := plan.prompts(ctx, e, round)
		if err != nil {
			return nil, err
		}
		runs := [2]run{{}, {drafts: plan.MaxDrafts, keep: plan.Keep, chance: rand.New(rand.NewPCG(uint64(round), 1))}}
		for i := range runs { // in turns, and each first as often as the other
			q := &runs[(i+round)%2]
			q.engine, q.plan, q.temperature = e, plan, plan.Temperature
			q.scheduler, q.first = schedulers[(i+round)%2], scheduler.SequenceID(round*plan.Batch)
			if err := q.generate(ctx, prompts, plan.Tokens); err != nil {
				return nil, err
			}
		}
		plain, speculative := &runs[0], &runs[1]
		if !slices.EqualFunc(plain.outputs, speculative.outputs, slices.Equal[[]int32]) {
			return nil, errors.New("speculation changed tokens, which is a bug: report it with this command")
		}
		r.Gains = append(r.Gains, speculative.rate()/plain.rate())
		for i := range all {
			all[i].add(&runs[i])
		}
		progress(int64(round+1), int64(plan.Rounds))
	}
	r.PlainTokens, r.SpeculativeTokens, r.Gain = all[0].rate(), all[1].rate(), stats.Median(r.Gains)
	r.Drafts, r.Accepted = all[1].drafted, all[1].accepted
	if judged := all[1].judged; judged > 0 {
		r.Acceptance = float64(r.Accepted) / float64(judged)
	}
	r.TokensPerStep = float64(all[1].tokens) / float64(all[1].parts)
	r.DraftingShare = all[1].drafting.Seconds() / all[1].took.Seconds()
	return r, nil
}

// prompts has the model write a passage for each sequence of the batch, others in each round, and
// makes prompts that repeat it.
func (p Plan) prompts(ctx context.Context, e engine.Engine, round int) ([][]int32, error) {
	first := make([][]int32, p.Batch)
	for i := range first {
		first[i] = []int32{int32(((round*p.Batch+i)*7919 + 11) % e.Model().VocabSize)}
	}
	s, err := p.newScheduler(e, 0)
	if err != nil {
		return nil, err
	}
	passages := run{engine: e, plan: p, temperature: p.PassageTemperature, scheduler: s}
	if err := passages.generate(ctx, first, p.PassageTokens); err != nil {
		return nil, fmt.Errorf("write passages: %w", err)
	}
	var prompts [][]int32
	for _, passage := range passages.outputs {
		prompts = append(prompts, append(slices.Repeat(passage, p.Repeats), passage[:p.PassageTokens/4]...))
	}
	return prompts, nil
}

// run is a batch generated once.
type run struct {
	engine      engine.Engine
	scheduler   *scheduler.Scheduler
	first       scheduler.SequenceID
	plan        Plan
	temperature float32
	drafts      int
	keep        float64
	chance      *rand.Rand

	outputs                   [][]int32
	took                      time.Duration // of steps that decode alone
	drafting                  time.Duration // of those, by the draft model
	tokens, parts             int           // of those
	drafted, accepted, judged int
}

func (q *run) rate() float64 { return float64(q.tokens) / q.took.Seconds() }

// add counts another run's steps and drafts.
func (q *run) add(other *run) {
	q.took, q.drafting, q.tokens, q.parts = q.took+other.took, q.drafting+other.drafting, q.tokens+other.tokens, q.parts+other.parts
	q.drafted, q.accepted, q.judged = q.drafted+other.drafted, q.accepted+other.accepted, q.judged+other.judged
}

// newScheduler makes a worker's scheduler, which lives through all rounds: what it learns of drafts
// and steps it knows in the next.
func (p Plan) newScheduler(e engine.Engine, drafts int) (*scheduler.Scheduler, error) {
	capacity := e.Capacity()
	layout := capacity.Layout
	return scheduler.New(scheduler.Config{
		Pool: kvcache.NewPool(capacity.Blocks, layout.BlockTokens, layout.ModelDigest, layout.ArithmeticClass), BlockTokens: layout.BlockTokens,
		ContextTokens: e.Model().ContextTokens, MaxBatchTokens: capacity.MaxBatchTokens, MaxSequences: capacity.MaxSequences,
		ChunkTokens: 8 * layout.BlockTokens, MaxWaiting: p.Batch, MaxDrafts: drafts, EngineDrafts: drafts > 0 && capacity.MakesDrafts,
	})
}

// generate generates so many tokens after each prompt.
func (q *run) generate(ctx context.Context, prompts [][]int32, tokens int) error {
	q.outputs = make([][]int32, len(prompts))
	var step *scheduler.RunStep
	take := func(actions []scheduler.Action) error {
		step = nil
		for _, action := range actions {
			switch a := action.(type) {
			case *scheduler.Sampled:
				q.outputs[a.ID-q.first] = append(q.outputs[a.ID-q.first], a.Token)
			case *scheduler.RunStep:
				step = a
			case scheduler.Finished:
				if a.Reason != scheduler.Length {
					return fmt.Errorf("sequence %d ended early: %w", a.ID, errors.Join(a.Err, context.Cause(ctx)))
				}
			case scheduler.Refused:
				return fmt.Errorf("sequence %d was refused", a.ID)
			}
		}
		return nil
	}
	// The first event has a step at once; the others join it with their prompts.
	for i, prompt := range prompts {
		actions := q.scheduler.Handle(time.Now(), scheduler.Submit{Request: scheduler.Request{
			ID: q.first + scheduler.SequenceID(i), Tokens: prompt, MaxTokens: tokens, Sampling: sampler.Params{Temperature: q.temperature, Seed: uint64(i)},
		}})
		if i > 0 {
			continue
		}
		if err := take(actions); err != nil {
			return err
		}
	}
	wall := time.Now()
	now := func() time.Duration { return time.Since(wall) }
	if q.plan.ProcessorTime {
		now, _ = processor.ThreadClock()
	}
	for step != nil {
		began, batch := now(), step.Batch
		decodes := !slices.ContainsFunc(step.Parts, func(p scheduler.Part) bool { return p.Prompt })
		batch.Sequences = q.spoil(batch.Sequences)
		out, err := q.engine.Step(ctx, batch)
		if err != nil {
			return err
		}
		if q.plan.ProcessorTime {
			out.Compute = max(now()-began-out.Drafting, 0)
		}
		if out.Drafts == nil {
			rejectLuckyDrafts(step.Batch.Sequences, batch.Sequences, out)
		}
		parts, before := len(step.Parts), q.generated()
		q.count(batch, out)
		if err := take(q.scheduler.Handle(time.Now(), scheduler.StepDone{Tokens: out.Tokens, Accepted: out.Accepted, Drafts: out.Drafts, Compute: out.Compute, Drafting: out.Drafting, Reading: out.Reading})); err != nil {
			return err
		}
		if decodes {
			q.took += now() - began
			q.drafting += out.Drafting
			q.tokens += q.generated() - before
			q.parts += parts
		}
	}
	return nil
}

func (q *run) generated() (n int) {
	for _, output := range q.outputs {
		n += len(output)
	}
	return n
}

// spoil makes draft tokens wrong, but for a share of them.
func (q *run) spoil(sequences []engine.Sequence) []engine.Sequence {
	if q.drafts == 0 || q.keep == 1 {
		return sequences
	}
	sequences = slices.Clone(sequences)
	for i := range sequences {
		s := &sequences[i]
		if s.Sample == nil || s.Sample.Drafts == 0 {
			continue
		}
		s.Tokens = slices.Clone(s.Tokens)
		for j := len(s.Tokens) - s.Sample.Drafts; j < len(s.Tokens); j++ {
			if q.chance.Float64() >= q.keep {
				s.Tokens[j] = (s.Tokens[j] + 1) % int32(q.engine.Model().VocabSize)
			}
		}
	}
	return sequences
}

// rejectLuckyDrafts takes back the acceptance of a draft token that was right because it was changed: of it the
// scheduler knows nothing. It is the token that was drawn.
func rejectLuckyDrafts(asked, computed []engine.Sequence, out engine.Output) {
	for i := range out.Accepted {
		a, c := asked[i].Tokens, computed[i].Tokens
		if asked[i].Sample == nil {
			continue
		}
		known := len(a) - asked[i].Sample.Drafts
		for j := range int(out.Accepted[i]) {
			if a[known+j] != c[known+j] {
				out.Accepted[i], out.Tokens[i] = int32(j), c[known+j]
				break
			}
		}
	}
}

func (q *run) count(batch engine.Batch, out engine.Output) {
	for i, s := range batch.Sequences {
		drafts := 0
		switch {
		case out.Drafts != nil:
			drafts = len(out.Drafts[i])
		case s.Sample != nil:
			drafts = s.Sample.Drafts
		}
		if drafts > 0 {
			accepted := int(out.Accepted[i])
			q.drafted += drafts
			q.accepted += accepted
			q.judged += min(accepted+1, drafts)
		}
	}
}
