package tokenizer

import (
	"context"
	"errors"
	"fmt"
)

// bytesPerCheck is how much text is encoded between two looks at the context, unless
// one piece is longer: well under a millisecond.
const bytesPerCheck = 1 << 12

// Encode returns the token ids of text, never nil. Added tokens that stand in the
// text, special ones too, become their ids. addSpecial puts around them what the
// file's post-processor asks for, such as a start token. Bytes that are no UTF-8 are
// encoded one by one; nothing is refused, save that a stretch of over 2 GiB without
// a place to cut gives nil.
func (t *Tokenizer) Encode(text string, addSpecial bool) []int32 {
	ids, err := t.EncodeContext(context.Background(), text, addSpecial, 0)
	if err != nil {
		return nil
	}
	return ids
}

// EncodeContext is Encode for texts that nobody vouches for. It gives up soon after
// ctx ends, with an error that wraps its error and its cause, and as soon as it is certain that
// more than maxTokens ids would come out (0: no limit), with one that wraps
// ErrTooLong. For a text far too long that is before any work, and memory stays in
// proportion to maxTokens.
func (t *Tokenizer) EncodeContext(ctx context.Context, text string, addSpecial bool, maxTokens int) ([]int32, error) {
	e := encoding{t: t, ctx: ctx, maxTokens: maxTokens}
	if addSpecial {
		e.reserved = len(t.template.after)
	}
	if err := e.check(); err != nil {
		return nil, err
	}
	if !t.swallows && t.normalizer.shrink > 0 {
		if err := e.checkBytes(len(text) / t.normalizer.shrink); err != nil {
			return nil, err
		}
	}
	e.work, _ = t.workspaces.Get().(*workspace)
	if e.work == nil {
		e.work = new(workspace)
	}
	defer func() {
		e.work.tidy()
		t.workspaces.Put(e.work)
	}()
	e.ids = make([]int32, 0, min(len(text)/3, 1<<16)+8)
	if addSpecial {
		e.ids = append(e.ids, t.template.before...)
	}
	if err := t.raw.split(text, e.raw, e.token); err != nil {
		return nil, err
	}
	if addSpecial {
		e.reserved = 0
		e.ids = append(e.ids, t.template.after...)
	}
	if err := e.checkCount(); err != nil {
		return nil, err
	}
	return e.ids, nil
}

// encoding is one call of EncodeContext.
type encoding struct {
	t         *Tokenizer
	ctx       context.Context
	work      *workspace
	maxTokens int
	reserved  int // ids that the template will append
	ids       []int32
	unchecked int // bytes since the last look at ctx
}

// raw takes text that has none of the added tokens looked for in it as it is. first
// says that it is the beginning of the whole text.
func (e *encoding) raw(text string, first bool) error {
	text, err := e.t.normalizer.apply(text, e.check)
	if err != nil {
		return err
	}
	if err := e.check(); err != nil {
		return err
	}
	return e.t.late.split(text, func(part string, begins bool) error {
		return e.stage(0, part, first && begins)
	}, e.token)
}

func (e *encoding) token(id int32) error {
	e.ids = append(e.ids, id)
	return e.done(1)
}

// stage cuts text, which has no added token, as the pre-tokenizers from number on do.
func (e *encoding) stage(number int, text string, first bool) error {
	if number == len(e.t.stages) {
		return e.piece(text)
	}
	s := &e.t.stages[number]
	text, err := s.rewrite(text, first, e.check)
	if err != nil {
		return err
	}
	switch {
	case s.scan != nil && number+1 == len(e.t.stages):
		for i := 0; i < len(text); {
			end := s.scan(text, i)
			if err := e.piece(text[i:end]); err != nil {
				return err
			}
			i = end
		}
		return nil
	case s.scan != nil:
		for i := 0; i < len(text); {
			end := s.scan(text, i)
			if err := e.stage(number+1, text[i:end], first && i == 0); err != nil {
				return err
			}
			i = end
		}
		return nil
	case s.find != nil:
		return s.cut(text, func(start, end int) error {
			return e.stage(number+1, text[start:end], first && start == 0)
		})
	}
	return e.stage(number+1, text, first)
}

func (e *encoding) piece(piece string) error {
	if len(piece) > longestWord {
		if err := e.checkBytes(len(piece)); err != nil {
			return err
		}
		if len(piece) > longestPiece {
			return fmt.Errorf("encode: %d bytes without a place to split: %w", len(piece), ErrTooLong)
		}
	}
	ids, err := e.t.model.appendPiece(e.work, e.ids, piece, e.check)
	if err != nil {
		return err
	}
	e.ids = ids
	return e.done(len(piece))
}

// done ends a step that took n bytes of text.
func (e *encoding) done(n int) error {
	if err := e.checkCount(); err != nil {
		return err
	}
	if e.unchecked += n; e.unchecked < bytesPerCheck {
		return nil
	}
	e.unchecked = 0
	return e.check()
}

// check says whether ctx has ended.
func (e *encoding) check() error {
	err := e.ctx.Err()
	if err == nil {
		return nil
	}
	if cause := context.Cause(e.ctx); !errors.Is(err, cause) {
		return fmt.Errorf("encode: %w: %w", err, cause)
	}
	return fmt.Errorf("encode: %w", err)
}

// checkCount says whether the ids so far are within the limit.
func (e *encoding) checkCount() error {
	if e.maxTokens > 0 && len(e.ids)+e.reserved > e.maxTokens {
		return e.tooLong()
	}
	return nil
}

// checkBytes says whether the ids of so many bytes of normalized text may fit.
func (e *encoding) checkBytes(bytes int) error {
	if e.t.unbounded {
		return nil
	}
	least := (bytes + e.t.longestToken - 1) / e.t.longestToken
	if e.maxTokens > 0 && len(e.ids)+e.reserved+least > e.maxTokens {
		return e.tooLong()
	}
	return nil
}

func (e *encoding) tooLong() error {
	return fmt.Errorf("encode: over %d: %w", e.maxTokens, ErrTooLong)
}
