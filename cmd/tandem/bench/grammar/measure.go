// Package grammar measures how long it takes to find the tokens that a form of output
// allows, for a new grammar and for one that other outputs have used, and how a form changes
// the rate of a batch.
//
// The command line imports it. It owns nothing. MeasureRate starts a goroutine, a worker's driver,
// and waits for it.
package grammar

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/processor"
	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/pkg/grammar"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// Plan describes a measurement.
type Plan struct {
	Sizes []int // of synthetic vocabularies, in tokens
	// Outputs is the number of outputs of each form.
	Outputs int
	// MaxTokens ends outputs that do not end.
	MaxTokens int
}

// Result holds the figures of each vocabulary and form.
type Result struct {
	Forms []Form `json:"forms"`
	// FirstMask is the time from a new schema to its first mask.
	FirstMask []FirstMask `json:"first_mask"`
	Clock     string      `json:"clock"` // processor or wall
}

// Form holds the times of masks of one form, in microseconds.
type Form struct {
	Vocabulary int    `json:"vocabulary"`
	Name       string `json:"form"`
	// New are the masks of the first output of a grammar, Used those of later outputs of the
	// same grammar.
	New  Times `json:"new"`
	Used Times `json:"used"`
}

// Times are quantiles of the time of a mask, in microseconds.
type Times struct {
	Masks int     `json:"masks"`
	P50   float64 `json:"p50_us"`
	P99   float64 `json:"p99_us"`
	Max   float64 `json:"max_us"`
}

// FirstMask is the median time from a schema to its first mask, in milliseconds.
type FirstMask struct {
	Vocabulary  int     `json:"vocabulary"`
	SchemaBytes int     `json:"schema_bytes"`
	Read        float64 `json:"vocabulary_ms"` // to read the vocabulary, once for a model
	Compile     float64 `json:"compile_ms"`
	Total       float64 `json:"total_ms"`
}

// eos ends outputs.
const eos = 0

// Measure measures each form in each vocabulary.
func Measure(ctx context.Context, plan Plan) (*Result, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out := new(Result)
	var clock func() time.Duration
	clock, out.Clock = processor.ThreadClock()
	for _, size := range plan.Sizes {
		texts := Synthetic(size)
		begin := clock()
		v, err := grammar.NewVocabulary(size, func(id int32) []byte { return texts[id] })
		if err != nil {
			return nil, err
		}
		read := clock() - begin
		// All forms share this work, once for a model.
		if _, err := measureForm(ctx, v, texts, forms[0], Plan{Outputs: 2, MaxTokens: plan.MaxTokens}); err != nil {
			return nil, err
		}
		for _, f := range forms {
			measured, err := measureForm(ctx, v, texts, f, plan)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.name, err)
			}
			out.Forms = append(out.Forms, *measured)
		}
		first, err := measureFirst(ctx, v)
		if err != nil {
			return nil, err
		}
		first.Read = float64(read.Microseconds()) / 1e3
		out.FirstMask = append(out.FirstMask, *first)
	}
	return out, nil
}

func measureForm(ctx context.Context, v *grammar.Vocabulary, texts [][]byte, f form, plan Plan) (*Form, error) {
	out := &Form{Vocabulary: len(texts), Name: f.name}
	// The first output of each of several grammars is new; the others use one of them.
	var news, used []time.Duration
	const fresh = 8
	for i := range fresh {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		g, err := grammar.Compile(ctx, f.source, v)
		if err != nil {
			return nil, err
		}
		news = generate(g, texts, rand.New(rand.NewPCG(uint64(i), 1)), plan.MaxTokens, news)
		if i > 0 {
			continue
		}
		for n := range 2 * plan.Outputs {
			times := generate(g, texts, rand.New(rand.NewPCG(uint64(n), 2)), plan.MaxTokens, nil)
			if n >= plan.Outputs {
				used = append(used, times...)
			}
		}
	}
	out.New, out.Used = timesOf(news), timesOf(used)
	return out, nil
}

// generate draws an output and appends the time of each mask. Strings are a few tokens long, as
// those of models are.
func generate(g *grammar.Grammar, texts [][]byte, r *rand.Rand, most int, times []time.Duration) []time.Duration {
	clock, _ := processor.ThreadClock()
	c := g.Constrain([]int32{eos})
	var tokens, ids, leaves []int32
	for len(tokens) < most {
		begin := clock()
		mask := c.Allowed(tokens)
		times = append(times, clock()-begin)
		ids, leaves = ids[:0], leaves[:0]
		for word, left := range mask {
			for bit := 0; left != 0; bit++ {
				if left&1 != 0 {
					id := int32(word<<6 + bit)
					ids = append(ids, id)
					if id == eos || slices.ContainsFunc(texts[id], func(b byte) bool { return b == '"' || b == '}' || b == ']' }) {
						leaves = append(leaves, id)
					}
				}
				left >>= 1
			}
		}
		if len(leaves) > 0 && r.IntN(4) == 0 {
			ids = leaves
		}
		if len(ids) == 0 {
			return times
		}
		id := ids[r.IntN(len(ids))]
		if id == eos {
			return times
		}
		tokens = append(tokens, id)
	}
	return times
}

func timesOf(times []time.Duration) Times {
	slices.Sort(times)
	at := func(q float64) float64 { return float64(stats.Quantile(times, q).Nanoseconds()) / 1e3 }
	return Times{Masks: len(times), P50: at(0.5), P99: at(0.99), Max: at(1)}
}

// measureFirst times new schemas of ten kilobytes.
func measureFirst(ctx context.Context, v *grammar.Vocabulary) (*FirstMask, error) {
	clock, _ := processor.ThreadClock()
	var compiles, totals []time.Duration
	size := 0
	for i := range 9 {
		source := large(i)
		size = len(source.GetJsonSchema())
		begin := clock()
		g, err := grammar.Compile(ctx, source, v)
		if err != nil {
			return nil, err
		}
		compiled := clock() - begin
		c := g.Constrain([]int32{eos})
		c.Allowed(nil)
		compiles, totals = append(compiles, compiled), append(totals, clock()-begin)
	}
	median := func(times []time.Duration) float64 { return stats.Milliseconds(stats.QuantileOf(times, 0.5)) }
	return &FirstMask{Vocabulary: v.Size(), SchemaBytes: size, Compile: median(compiles), Total: median(totals)}, nil
}

func ofSchema(text string) *inferencev1.StructuredOutput {
	return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_JsonSchema{JsonSchema: text}}
}
