package grammar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/bounds"
	"github.com/tandem-serving/tandem/loadtest/processor"
	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// RatePlan is how to measure a batch that is held to a schema beside a free one.
type RatePlan struct {
	Batch       int     `json:"batch"`
	Prompt      int     `json:"prompt"`
	Tokens      int     `json:"tokens"`
	Temperature float32 `json:"temperature"`
	Rounds      int     `json:"rounds"`
}

// Rate is what came of it. Ratios are medians over the rounds, each over the free batch of the
// same round.
type Rate struct {
	RatePlan
	Model   string `json:"model"`
	Threads int    `json:"threads"`
	// Tokens a second of the best rounds.
	FreeTokens float64 `json:"free_tokens_per_s"`
	HeldTokens float64 `json:"constrained_tokens_per_s"`
	LateTokens float64 `json:"masks_in_the_draw_tokens_per_s"`
	// Held is constrained over free; Late the same with masks that are made in the draw, and not
	// beside the engine.
	Held float64 `json:"constrained_over_free"`
	Late float64 `json:"masks_in_the_draw_over_free"`
	// HeldProcessor and LateProcessor are the same of tokens a second of the process's processors.
	HeldProcessor float64 `json:"constrained_over_free_processor"`
	LateProcessor float64 `json:"masks_in_the_draw_over_free_processor"`
}

// people is a list of records that does not end before the tokens do.
const people = `{"type":"array","minItems":1000,"items":{"type":"object","properties":{"id":{"type":"string","pattern":"^[A-Z]{3}-[0-9]{6}$"},"name":{"type":"string","maxLength":40},
	"age":{"type":"integer","minimum":0,"maximum":150},"born":{"type":"string","format":"date"},"status":{"enum":["open","paid","sent"]},"score":{"type":"number"},
	"tags":{"type":"array","items":{"type":"string","maxLength":20},"maxItems":4},"married":{"type":"boolean"}},
	"required":["id","name","age","born","status","score","tags","married"],"additionalProperties":false}}`

// minVocabulary is how many tokens a synthetic vocabulary needs at least.
const minVocabulary = 3_000

// Validate names the flag of what is wrong.
func (p RatePlan) Validate() error {
	return cmp.Or(
		bounds.Within("--batch", p.Batch, 1, 256),
		bounds.Within("--tokens", p.Tokens, 2, 1<<14),
		bounds.Within("--prompt", p.Prompt, 1, 1<<14),
		bounds.Within("--temperature", p.Temperature, 0, 100),
		bounds.Within("--rounds", p.Rounds, 1, 1000),
	)
}

// ValidateFor checks the plan for a model of that name and context.
func (p RatePlan) ValidateFor(name string, contextTokens int) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if p.Prompt+p.Tokens > contextTokens {
		return fmt.Errorf("--prompt and --tokens: %d are over the %d tokens that %s takes", p.Prompt+p.Tokens, contextTokens, name)
	}
	return nil
}

func (p RatePlan) config() cpu.Config {
	return cpu.Config{
		Weights: cpu.BF16, KV: cpu.KVBF16, Blocks: (p.Batch + 1) * ((p.Prompt+p.Tokens)/cpu.DefaultBlockTokens + 2), BlockTokens: cpu.DefaultBlockTokens,
		MaxBatchTokens: max(cpu.DefaultMaxBatchTokens, p.Batch+cpu.DefaultBlockTokens), MaxSequences: p.Batch,
	}
}

// Bytes is about the memory that loading the model and measuring takes.
func (p RatePlan) Bytes(spec model.Spec) int64 { return cpu.FootprintBytes(spec, p.config()) }

// MeasureRate measures with an engine of the weights and a worker's driver. progress hears of each
// round.
func MeasureRate(ctx context.Context, weights *cpu.Weights, plan RatePlan, progress func(done, total int64)) (result *Rate, err error) {
	size := weights.Spec().VocabSize
	if size < minVocabulary {
		return nil, fmt.Errorf("the model has %d tokens: take one with %d or more, in which JSON can be written", size, minVocabulary)
	}
	texts := Synthetic(size)
	v, err := grammar.NewVocabulary(size, func(id int32) []byte { return texts[id] })
	if err != nil {
		return nil, err
	}
	config := plan.config()
	config.Threads = weights.Threads()
	e, err := weights.NewEngine(config)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	driver, err := workerdriver.NewDriver(workerdriver.Config{Engine: e, Limits: worker.Limits{ChunkTokens: 8 * cpu.DefaultBlockTokens, MaxWaiting: plan.Batch}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); driver.Run(running) }()
	defer func() { stop(); <-ended }()

	r := &Rate{RatePlan: plan, Model: weights.Spec().Name, Threads: weights.Threads()}
	best := [3]*float64{&r.FreeTokens, &r.HeldTokens, &r.LateTokens}
	var ratios, processors [3][]float64
	for round := range plan.Rounds {
		var rates, worked [3]float64
		for i := range 3 { // in turns, and each first as often as the others
			which := (i + round) % 3
			// A new grammar in each round: the first time at each place of it counts.
			g, err := grammar.Compile(ctx, &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_JsonSchema{JsonSchema: people}}, v)
			if err != nil {
				return nil, err
			}
			constrain := func() sampler.Constraint {
				switch which {
				case 1:
					return g.Constrain([]int32{eos})
				case 2:
					return struct{ sampler.Constraint }{g.Constrain([]int32{eos})} // without Prepare
				}
				return nil
			}
			salt := fmt.Sprint(which, " ", round) // no prompt is in the prefix cache
			if rates[which], worked[which], err = plan.generate(ctx, driver, round, salt, constrain); err != nil {
				return nil, err
			}
			*best[which] = max(*best[which], rates[which])
		}
		for which := 1; which < 3; which++ {
			ratios[which] = append(ratios[which], rates[which]/rates[0])
			processors[which] = append(processors[which], worked[which]/worked[0])
		}
		progress(int64(round+1), int64(plan.Rounds))
	}
	r.Held, r.Late = stats.Median(ratios[1]), stats.Median(ratios[2])
	r.HeldProcessor, r.LateProcessor = stats.Median(processors[1]), stats.Median(processors[2])
	return r, nil
}

// generate has a batch generated, and says how many tokens a second that gave, and a second of the
// process's processors.
func (p RatePlan) generate(ctx context.Context, driver *workerdriver.Driver, round int, salt string, constrain func() sampler.Constraint) (rate, worked float64, err error) {
	began := time.Now()
	used, err := processor.CPUSeconds(os.Getpid())
	if err != nil {
		return 0, 0, err
	}
	var sequences []*workerdriver.Sequence
	for i := range p.Batch {
		prompt := make([]int32, p.Prompt)
		for j := range prompt {
			prompt[j] = int32(1 + (round*7919+i*104729+j*31)%(minVocabulary-1))
		}
		sequences = append(sequences, driver.Submit(scheduler.Request{
			ID: driver.Reserve(), Kind: scheduler.Full, Tokens: prompt, Salt: salt, MaxTokens: p.Tokens, Constraint: constrain(),
			Sampling: sampler.Params{Temperature: p.Temperature, Seed: uint64(round*p.Batch + i)},
		}))
	}
	for _, s := range sequences {
		if err := await(ctx, s); err != nil {
			return 0, 0, err
		}
	}
	took := time.Since(began).Seconds()
	now, err := processor.CPUSeconds(os.Getpid())
	tokens := float64(p.Batch * p.Tokens)
	return tokens / took, tokens / (now - used), err
}

// await waits until a sequence has all its tokens.
func await(ctx context.Context, s *workerdriver.Sequence) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Ready():
		}
		for _, action := range s.Take() {
			switch a := action.(type) {
			case scheduler.Refused:
				return fmt.Errorf("sequence %d was refused", a.ID)
			case scheduler.Finished:
				if a.Reason != scheduler.Length {
					return fmt.Errorf("sequence %d ended early: %v: %w", a.ID, a.Reason, a.Err)
				}
				return nil
			}
		}
	}
}
