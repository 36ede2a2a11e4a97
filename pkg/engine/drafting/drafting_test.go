package drafting_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/drafting"
	"github.com/tandem-serving/tandem/pkg/engine/enginetest"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const blockTokens = 4

// engineOf is a simulated engine of so many layers and blocks, whose texts repeat themselves: those
// of different layers often draw the same token.
func engineOf(t *testing.T, layers, blocks int) engine.Engine {
	t.Helper()
	e, err := simulated.New(simulated.Config{
		Spec:   model.Spec{Digest: "d", VocabSize: 97, Layers: layers, KVHeads: 1, HeadSize: 8, ContextTokens: 600, BOS: -1},
		Blocks: blocks, BlockTokens: blockTokens, MaxBatchTokens: 2 * drafting.ChunkTokens, MaxSequences: 8,
		StepTime: latency.Model{BaseMs: 1}, Acceptance: 0.8, Wait: func(context.Context, time.Duration) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// beside is an engine of four layers with a draft model.
func beside(t *testing.T, draft engine.Engine, log *strings.Builder) *drafting.Engine {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	if log != nil {
		logger = slog.New(slog.NewTextHandler(log, nil))
	}
	e, err := drafting.New(engineOf(t, 4, 1000), draft, logger)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestConformance(t *testing.T) {
	enginetest.Run(t, func(t *testing.T) engine.Engine { return beside(t, engineOf(t, 2, 100), nil) })
}

// text is a sequence that is generated.
type text struct {
	name       uint64
	prompt     []int32
	tokens     []int32 // generated
	first      int     // block
	params     sampler.Params
	constraint sampler.Constraint
	left       int

	asked, made, right int
}

func newTexts(n, promptTokens int) (all []*text) {
	for i := range n {
		x := &text{name: uint64(i + 7), first: 120 * i, params: sampler.Params{Temperature: float32(i % 2), Seed: uint64(i)}}
		for j := range promptTokens {
			x.prompt = append(x.prompt, int32((i*31+j*17+j*j)%97))
		}
		all = append(all, x)
	}
	return all
}

// work is the next step of a text, which may have so many drafts.
func (x *text) work(drafts int) engine.Sequence {
	all := slices.Concat(x.prompt, x.tokens)
	start := len(all) - 1
	if len(x.tokens) == 0 {
		start = 0
	}
	s := engine.Sequence{Tokens: all[start:], Start: start, Sample: &engine.Sample{
		Offset: uint64(len(x.tokens)), Params: x.params, Constraint: x.constraint, Logprobs: true, TopLogprobs: 1,
		History:      sampler.History{Prompt: x.prompt, Generated: x.tokens},
		DraftRequest: engine.DraftRequest{Sequence: x.name, Most: drafts, Left: x.left},
	}}
	for i := range (len(all) + drafts + blockTokens - 1) / blockTokens {
		s.Blocks = append(s.Blocks, kvcache.BlockID(x.first+i))
	}
	return s
}

// step computes a step of some texts, with so many drafts of each.
func step(t *testing.T, e engine.Engine, drafts func(x *text) int, texts ...*text) engine.Output {
	t.Helper()
	var batch engine.Batch
	for _, x := range texts {
		batch.Sequences = append(batch.Sequences, x.work(drafts(x)))
	}
	out, err := e.Step(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range texts {
		most, made, right := batch.Sequences[i].Sample.DraftRequest.Most, []int32(nil), 0
		if out.Drafts != nil {
			made, right = out.Drafts[i], int(out.Accepted[i])
		}
		if len(made) > most || right > len(made) || right > 0 && len(out.DraftLogprobs[i]) != right {
			t.Fatalf("%d drafts of %d, %d right", len(made), most, right)
		}
		x.tokens = append(append(x.tokens, made[:right]...), out.Tokens[i])
		x.asked, x.made, x.right = x.asked+most, x.made+len(made), x.right+right
	}
	return out
}

func all(n int) func(*text) int { return func(*text) int { return n } }

// same checks that texts are what they are without drafts, as far as they go.
func same(t *testing.T, texts ...*text) {
	t.Helper()
	e := engineOf(t, 4, 1000)
	for _, x := range texts {
		plain := &text{prompt: x.prompt, params: x.params, constraint: x.constraint}
		for len(plain.tokens) < len(x.tokens) {
			step(t, e, all(0), plain)
		}
		if !slices.Equal(plain.tokens, x.tokens) {
			t.Errorf("sequence %d: %v, without drafts %v", x.name, x.tokens, plain.tokens)
		}
	}
}

// Whatever the draft model is, the tokens are the same; one that is the model itself is always right.
func TestTheTokensAreTheSame(t *testing.T) {
	for layers := 1; layers <= 4; layers++ {
		t.Run(fmt.Sprint(layers, " layers"), func(t *testing.T) {
			e := beside(t, engineOf(t, layers, 1000), nil)
			texts := newTexts(4, 21)
			for i := range 40 {
				out := step(t, e, func(x *text) int { return (i + int(x.name)) % 5 }, texts...)
				if (out.Drafting > 0) != (out.Drafts != nil) {
					t.Errorf("%v for the drafts %v", out.Drafting, out.Drafts)
				}
			}
			same(t, texts...)
			for _, x := range texts {
				if x.made != x.asked || layers == 4 && x.right != x.made || x.right < x.made/4 {
					t.Errorf("sequence %d: %d drafts of %d, %d right", x.name, x.made, x.asked, x.right)
				}
			}
		})
	}
}

// watched is an engine that knows how many tokens its steps computed, and that fails when it is told.
type watched struct {
	engine.Engine
	tokens []int // of each step
	fails  error
	none   bool // it draws nothing
}

func (w *watched) Step(ctx context.Context, batch engine.Batch) (engine.Output, error) {
	n := 0
	for _, s := range batch.Sequences {
		n += len(s.Tokens)
	}
	w.tokens = append(w.tokens, n)
	if w.fails != nil {
		return engine.Output{}, w.fails
	}
	out, err := w.Engine.Step(ctx, batch)
	for i := range out.Tokens {
		if w.none {
			out.Tokens[i] = sampler.None
		}
	}
	return out, err
}

// A long prompt is computed a chunk in each step, in nobody's way, and once.
func TestALongPromptIsReadInChunks(t *testing.T) {
	draft := &watched{Engine: engineOf(t, 4, 1000)}
	e := beside(t, draft, nil)
	long, short := newTexts(1, 3*drafting.ChunkTokens/2)[0], newTexts(2, 10)[1]
	for range 4 {
		step(t, e, all(2), long, short)
	}
	if long.made == 0 || long.made == long.asked || short.made != short.asked {
		t.Errorf("%d drafts of %d, and %d of %d of the short one", long.made, long.asked, short.made, short.asked)
	}
	computed := 0
	for _, n := range draft.tokens {
		if computed += n; n > drafting.ChunkTokens {
			t.Errorf("a step of %d tokens: %v", n, draft.tokens)
		}
	}
	if length := len(long.prompt) + len(long.tokens) + len(short.prompt) + len(short.tokens); computed > length {
		t.Errorf("%d tokens were computed, of texts of %d", computed, length)
	}
	same(t, long, short)
}

// A prompt is not read where the output ends before drafts could help.
func TestALongPromptIsNotReadForAFewTokens(t *testing.T) {
	for left, reads := range map[int]bool{0: true, 2: false, 3: true} {
		draft := &watched{Engine: engineOf(t, 4, 1000)}
		e := beside(t, draft, nil)
		x := newTexts(1, 2*drafting.ChunkTokens)[0]
		x.left = left
		step(t, e, all(2), x)
		if len(draft.tokens) > 0 != reads {
			t.Errorf("with %d tokens left, it reads %v", left, draft.tokens)
		}
		same(t, x)
	}
}

// A text that the draft model can draw nothing after is not read again: it would come to the same.
func TestNothingCanBeDrawn(t *testing.T) {
	draft := &watched{Engine: engineOf(t, 4, 1000), none: true}
	e := beside(t, draft, nil)
	x := newTexts(1, 40)[0]
	for range 3 {
		step(t, e, all(2), x)
	}
	if len(draft.tokens) != 2 { // the prompt, and a draw
		t.Errorf("steps of %v tokens", draft.tokens)
	}
	same(t, x)
}

// A draft model that fails is not asked again, and no request fails with it.
func TestTheDraftModelFails(t *testing.T) {
	var log strings.Builder
	draft := &watched{Engine: engineOf(t, 4, 1000)}
	e := beside(t, draft, &log)
	x := newTexts(1, 10)[0]
	for i := range 10 {
		if i == 4 {
			draft.fails = errors.New("it burns")
		}
		step(t, e, all(3), x)
	}
	if x.made != 4*3 || len(draft.tokens) != 4*3+1 || strings.Count(log.String(), "it burns") != 1 {
		t.Errorf("%d drafts, %d steps of the draft model, log %q", x.made, len(draft.tokens), log.String())
	}
	same(t, x)
}

// A step that is cancelled while the draft model computes is cancelled, and says nothing of that.
func TestAStepIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	draft := &watched{Engine: engineOf(t, 4, 1000)}
	var log strings.Builder
	target := &watched{Engine: engineOf(t, 4, 1000)}
	e, err := drafting.New(target, draft, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	x := newTexts(1, 10)[0]
	step(t, e, all(2), x)
	cancel()
	draft.fails, target.fails = ctx.Err(), ctx.Err()
	if _, err := e.Step(ctx, engine.Batch{Sequences: []engine.Sequence{x.work(2)}}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	draft.fails, target.fails = nil, nil
	before := x.made
	step(t, e, all(2), x)
	if x.made != before+2 || log.Len() > 0 {
		t.Errorf("%d drafts after it, log %q", x.made-before, log.String())
	}
	same(t, x)
}

// Who lacks blocks has no drafts, and gets some once another one has not drafted for a while.
func TestBlocksRunOut(t *testing.T) {
	draft := &watched{Engine: engineOf(t, 4, 14)} // 56 tokens
	e := beside(t, draft, nil)
	texts := newTexts(3, 17)
	for range 3 {
		step(t, e, all(2), texts...)
	}
	for i, x := range texts {
		if got := x.made > 0; got != (i < 2) {
			t.Errorf("sequence %d of 3 made %d drafts", i, x.made)
		}
	}
	// The first ends. The last waits until its blocks are nobody's.
	waited := 0
	for texts[2].made == 0 && waited < 100 {
		waited++
		last := len(texts[2].tokens)
		step(t, e, func(x *text) int { return 2 }, texts[2])
		texts[2].tokens = texts[2].tokens[:last:last] // the same step again
	}
	if waited < 30 || waited > 50 {
		t.Errorf("it had its first draft after %d steps", waited)
	}
	computed := len(draft.tokens)
	step(t, e, all(2), texts[2])
	if len(draft.tokens) != computed+2 {
		t.Errorf("%d steps for two drafts", len(draft.tokens)-computed)
	}
	for _, n := range draft.tokens[computed:] {
		if n > 2 {
			t.Errorf("%d tokens were computed, of a text that was known", n)
		}
	}
	same(t, texts[0], texts[1])
}

// A text that outgrows the blocks goes on without drafts, and others get them.
func TestATextOutgrowsTheBlocks(t *testing.T) {
	e := beside(t, engineOf(t, 4, 6), nil) // 24 tokens
	x, other := newTexts(2, 14)[0], newTexts(2, 14)[1]
	for len(x.tokens) < 40 {
		step(t, e, all(3), x)
	}
	if x.made == 0 || len(x.prompt)+x.made > 30 {
		t.Errorf("%d drafts", x.made)
	}
	step(t, e, all(3), other)
	if other.made != 3 {
		t.Errorf("%d drafts of another one", other.made)
	}
	same(t, x, other)
}

// A text that never fits takes nothing from others.
func TestATextIsTooLong(t *testing.T) {
	draft := &watched{Engine: engineOf(t, 4, 6)} // 24 tokens
	e := beside(t, draft, nil)
	x, long := newTexts(1, 9)[0], newTexts(2, 40)[1]
	step(t, e, all(2), x)
	for range 40 { // longer than others keep what they have
		step(t, e, all(2), long)
	}
	computed := len(draft.tokens)
	step(t, e, all(2), x)
	if long.made > 0 || len(draft.tokens) != computed+2 {
		t.Errorf("%d drafts of the long one; %d steps for two drafts of the other", long.made, len(draft.tokens)-computed)
	}
	for _, n := range draft.tokens[computed:] {
		if n > 2 {
			t.Errorf("%d tokens were computed, of a text that was known", n)
		}
	}
	same(t, x, long)
}

// What is known by a name and is not the text any more is dropped.
func TestATextIsAnotherOne(t *testing.T) {
	e := beside(t, engineOf(t, 4, 1000), nil)
	texts := newTexts(2, 14)
	step(t, e, all(3), texts[0])
	texts[1].name = texts[0].name
	copy(texts[1].prompt, texts[0].prompt[:7])
	for range 5 {
		step(t, e, all(3), texts[1])
	}
	if texts[1].right != texts[1].asked {
		t.Errorf("%d drafts of %d were right", texts[1].right, texts[1].asked)
	}
	same(t, texts[1])
}

// every is a constraint that leaves one token at every other place.
type every struct{}

func (every) Allowed(generated []int32) []uint64 {
	if n := len(generated); n%2 == 1 {
		return []uint64{1 << (n % 50), 0}
	}
	return []uint64{^uint64(0), 1<<33 - 1}
}

// The draft model drafts what an output constraint allows.
func TestDraftsUnderAConstraint(t *testing.T) {
	e := beside(t, engineOf(t, 4, 1000), nil)
	x := newTexts(1, 14)[0]
	x.constraint = every{}
	for range 10 {
		step(t, e, func(x *text) int { return 1 + len(x.tokens)%2 }, x)
	}
	if x.right != x.asked || x.asked == 0 {
		t.Errorf("%d drafts of %d were right", x.right, x.asked)
	}
	same(t, x)
}

// Tokens that the draft model does not have are none that it can draft after; the worker goes on.
func TestAnUnknownToken(t *testing.T) {
	small, err := simulated.New(simulated.Config{
		Spec:   model.Spec{Digest: "d", VocabSize: 90, Layers: 1, KVHeads: 1, HeadSize: 8, ContextTokens: 100, BOS: -1},
		Blocks: 100, BlockTokens: blockTokens, MaxBatchTokens: drafting.ChunkTokens, MaxSequences: 8, Wait: func(context.Context, time.Duration) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = small.Close() })
	e := beside(t, small, nil)
	texts := newTexts(2, 14)
	texts[0].prompt[5] = 95
	for i := range texts[1].prompt {
		texts[1].prompt[i] %= 90
	}
	step(t, e, all(2), texts...)
	if texts[0].made != 0 || texts[1].made != 2 {
		t.Errorf("%d drafts after an unknown token, %d without", texts[0].made, texts[1].made)
	}
	same(t, texts...)
}

// A draft model that is of no use is refused.
func TestNew(t *testing.T) {
	unknown := (latency.Model{BaseMs: 1}).Profile()
	unknown.Verify = nil // what drafts cost
	config := simulated.Config{
		Spec: engineOf(t, 1, 1).Model(), Blocks: 10, BlockTokens: blockTokens, MaxBatchTokens: drafting.ChunkTokens, MaxSequences: 4,
		Wait: func(context.Context, time.Duration) error { return nil },
	}
	make := func(change func(*simulated.Config)) engine.Engine {
		c := config
		change(&c)
		e, err := simulated.New(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		return e
	}
	good := make(func(*simulated.Config) {})
	for says, pair := range map[string][2]engine.Engine{
		"verifies no drafts": {make(func(c *simulated.Config) { c.Profile = unknown }), good},
		"tokens in a step":   {good, make(func(c *simulated.Config) { c.MaxBatchTokens = 100 })},
		"sequences in":       {good, make(func(c *simulated.Config) { c.MaxSequences = 3 })},
	} {
		if _, err := drafting.New(pair[0], pair[1], slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v, which should speak of %q", err, says)
		}
	}
}
