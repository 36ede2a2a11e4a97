package drafting

import (
	"cmp"
	"context"
	"slices"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// drafter is a sequence of a step that asked for drafts.
type drafter struct {
	index  int // in the batch
	sample *engine.Sample
	text   *text
	known  int // tokens of text that are no drafts
	most   int // drafts; less than asked where there is no room for more
	drafts []int32
}

// ask finds who asks for drafts and may have some, and says whether there is anybody.
func (e *Engine) ask(batch engine.Batch) bool {
	e.drafters = e.drafters[:0]
	if e.failed {
		return false
	}
	e.texts.begin()
	for i := range batch.Sequences {
		s := &batch.Sequences[i]
		if s.Sample == nil || s.Sample.DraftRequest.Most <= 0 || s.Sample.Drafts > 0 {
			continue
		}
		end := s.Start + len(s.Tokens)
		most := min(s.Sample.DraftRequest.Most, e.capacity.MaxDrafts, len(s.Blocks)*e.capacity.Layout.BlockTokens-end, e.Model().ContextTokens-end)
		known := len(s.Sample.History.Prompt) + len(s.Sample.History.Generated)
		if most > 0 && known == end {
			x := e.texts.of(s.Sample.DraftRequest.Sequence, s.Sample.History)
			e.drafters = append(e.drafters, &drafter{index: i, sample: s.Sample, text: x, known: len(x.tokens), most: most, drafts: make([]int32, 0, most)})
		}
	}
	return len(e.drafters) > 0
}

// makeDrafts has the draft model draw, for all of a step together: a token of each in a round.
func (e *Engine) makeDrafts(ctx context.Context) error {
	wanting := e.members[:0]
	for _, g := range e.drafters {
		switch {
		case g.text.spoilt:
		case g.comesTooLate():
			e.texts.drop(g.sample.DraftRequest.Sequence)
			continue
		case e.reserve(g):
			wanting = append(wanting, g)
			continue
		}
		if len(g.text.blocks) == 0 {
			e.texts.drop(g.sample.DraftRequest.Sequence)
		}
	}
	e.members = wanting
	// Those that have to compute the least come first: a long prompt is in nobody's way.
	slices.SortStableFunc(wanting, func(a, b *drafter) int { return cmp.Compare(a.missing(), b.missing()) })
	wanting, err := e.read(ctx, wanting)
	for err == nil && len(wanting) > 0 {
		e.plan(wanting)
		var out engine.Output
		if out, err = e.step(ctx); err == nil {
			wanting = e.take(wanting, out)
		}
	}
	return err
}

// step runs the batch that is planned.
func (e *Engine) step(ctx context.Context) (engine.Output, error) {
	e.batch.TokenBuffer = slices.Grow(e.batch.TokenBuffer[:0], len(e.batch.Sequences))
	out, err := e.draft.Step(ctx, e.batch)
	e.took += out.Compute
	return out, err
}

// mostMissing is how many tokens a text may lack and still have drafts at once. Who drafts in every step lacks
// fewer.
const mostMissing = 16

// read computes texts that lack more, in a step of its own, so that what drafts take is known. It
// returns who can draft then: the rest of a longer text is computed in later steps.
func (e *Engine) read(ctx context.Context, wanting []*drafter) (ready []*drafter, err error) {
	first := 0
	for first < len(wanting) && wanting[first].missing() <= mostMissing {
		first++
	}
	e.batch.Sequences = e.batch.Sequences[:0]
	left := ChunkTokens
	for _, g := range wanting[first:] {
		x := g.text
		n := min(g.missing()-1, left)
		if n == 0 {
			break
		}
		left -= n
		e.batch.Sequences = append(e.batch.Sequences, engine.Sequence{Tokens: x.tokens[x.computed : x.computed+n], Start: x.computed, Blocks: x.blocks})
	}
	if len(e.batch.Sequences) == 0 {
		return wanting[:first], nil
	}
	out, err := e.step(ctx)
	if err != nil {
		return nil, err
	}
	e.reading = out.Compute
	ready = wanting[:first]
	for i, s := range e.batch.Sequences {
		g := wanting[first+i]
		if g.text.computed += len(s.Tokens); g.missing() <= mostMissing {
			ready = append(ready, g)
		}
	}
	return ready, nil
}

func (g *drafter) missing() int { return len(g.text.tokens) - g.text.computed }

// comesTooLate reports that the output ends before its text is computed, a chunk for each token.
func (g *drafter) comesTooLate() bool {
	left := g.sample.DraftRequest.Left
	return left > 0 && g.missing()/ChunkTokens >= left
}

// reserve gets a sequence the blocks to draft in, for fewer drafts if need be.
func (e *Engine) reserve(g *drafter) bool {
	if vocabulary := e.draft.Model().VocabSize; slices.ContainsFunc(g.text.tokens[g.text.computed:], func(id int32) bool { return int(id) >= vocabulary }) {
		return false // it will never know such a token
	}
	// The last draft is not computed.
	fits := e.draft.Model().ContextTokens - (g.known - 1)
	for _, most := range []int{min(g.most, fits), min(1, fits)} {
		if most > 0 && e.texts.reserve(g.text, g.known+most-1) {
			g.most = most
			return true
		}
	}
	e.texts.drop(g.sample.DraftRequest.Sequence) // so that one of those who lack blocks gets them
	return false
}

// plan makes the draft model's batch: of each what is not computed, and a draw, as long as that fits
// into ChunkTokens, which that of the first one does.
func (e *Engine) plan(wanting []*drafter) {
	e.batch.Sequences, e.samples = e.batch.Sequences[:0], slices.Grow(e.samples[:0], len(wanting))
	left := max(ChunkTokens, len(wanting))
	for _, g := range wanting {
		if left -= g.missing(); left < 0 {
			break
		}
		x, asked := g.text, len(g.sample.History.Prompt)
		e.samples = append(e.samples, engine.Sample{
			Params: g.sample.Params, Constraint: g.sample.DraftConstraint(), Offset: g.sample.Offset + uint64(len(g.drafts)),
			History: sampler.History{Prompt: x.tokens[:asked], Generated: x.tokens[asked:len(x.tokens):len(x.tokens)]},
		})
		e.batch.Sequences = append(e.batch.Sequences, engine.Sequence{Tokens: x.tokens[x.computed:], Start: x.computed, Blocks: x.blocks, Sample: &e.samples[len(e.samples)-1]})
	}
}

// take takes what the draft model drew, and gives who wants one more draft.
func (e *Engine) take(wanting []*drafter, out engine.Output) (more []*drafter) {
	more = wanting[:0]
	for i, s := range e.batch.Sequences {
		g := wanting[i]
		g.text.computed += len(s.Tokens)
		switch token := out.Tokens[i]; {
		case token == sampler.None:
			e.texts.spoil(g.text)
		case token < 0 || int(token) >= e.Model().VocabSize:
		default:
			g.drafts = append(g.drafts, token)
			g.text.tokens = append(g.text.tokens, token)
			if len(g.drafts) < g.most {
				more = append(more, g)
			}
		}
	}
	return more
}
