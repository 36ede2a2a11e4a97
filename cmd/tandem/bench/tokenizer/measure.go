// Package tokenizer measures a tokenizer: how many tokens a second one core encodes
// and decodes, beside how fast the same core, in the same run, reads the same text
// character by character and asks one table about each, which no tokenizer that looks
// at characters can outrun.
//
// The command line imports it. It owns nothing; Measure starts a goroutine for each
// thread and waits for them.
package tokenizer

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/loadtest/processor"
)

// Corpus is English prose, for those who have no text of their own.
//
//go:embed corpus.txt
var Corpus string

// Tokenizer is what is measured.
type Tokenizer interface {
	EncodeContext(ctx context.Context, text string, addSpecial bool, maxTokens int) ([]int32, error)
	Decode(ids []int32, skipSpecial bool) string
}

// Plan is what to measure.
type Plan struct {
	Text     string
	Duration time.Duration // of all three parts together
	Threads  int
}

// partBytes is about how much text is encoded at a time: a long prompt.
const partBytes = 16 << 10

// Result is what one core does, the mean over the threads: seconds are of processor
// time where the system tells it for a thread, of the clock where not.
type Result struct {
	Threads     int     `json:"threads"`
	TextBytes   int     `json:"text_bytes"`
	TextTokens  int     `json:"text_tokens"`
	Encode      float64 `json:"encode_tokens_per_s_core"`
	EncodeBytes float64 `json:"encode_mbytes_per_s_core"`
	Decode      float64 `json:"decode_tokens_per_s_core"`
	DecodeBytes float64 `json:"decode_mbytes_per_s_core"`
	Scan        float64 `json:"scan_mbytes_per_s_core"`
	EncodeShare float64 `json:"encode_of_scan"`
	Clock       string  `json:"clock"` // processor or wall
}

// Measure runs each part for a third of the plan's duration on every thread.
func Measure(ctx context.Context, t Tokenizer, p Plan) (*Result, error) {
	switch {
	case p.Text == "":
		return nil, errors.New("no text to measure with: give some")
	case p.Threads < 1:
		return nil, fmt.Errorf("%d threads: give 1 or more", p.Threads)
	case p.Duration <= 0:
		return nil, fmt.Errorf("duration %v: give more than 0", p.Duration)
	}
	parts := cut(p.Text)
	ids := make([][]int32, len(parts))
	tokens := 0
	for i, part := range parts {
		var err error
		if ids[i], err = t.EncodeContext(ctx, part, false, 0); err != nil {
			return nil, err
		}
		tokens += len(ids[i])
	}
	classes := newClasses()
	perPart := func(i int) float64 { return float64(len(parts[i])) / 1e6 }
	scan, err := p.run(ctx, len(parts), func(i int) (float64, error) {
		classes.count(parts[i])
		return perPart(i), nil
	})
	if err != nil {
		return nil, err
	}
	encode, err := p.run(ctx, len(parts), func(i int) (float64, error) {
		_, err := t.EncodeContext(ctx, parts[i], false, 0)
		return perPart(i), err
	})
	if err != nil {
		return nil, err
	}
	decode, err := p.run(ctx, len(parts), func(i int) (float64, error) {
		t.Decode(ids[i], true)
		return perPart(i), nil
	})
	if err != nil {
		return nil, err
	}
	_, clock := processor.ThreadClock()
	tokensPerMByte := float64(tokens) / (float64(len(p.Text)) / 1e6)
	return &Result{
		Threads: p.Threads, TextBytes: len(p.Text), TextTokens: tokens, Clock: clock,
		Encode: encode * tokensPerMByte, EncodeBytes: encode, Decode: decode * tokensPerMByte, DecodeBytes: decode,
		Scan: scan, EncodeShare: encode / scan,
	}, nil
}

// run does steps 0 to n-1 over and over on every thread; the rate is units a second
// of one core.
func (p Plan) run(ctx context.Context, n int, step func(i int) (units float64, err error)) (float64, error) {
	rates, errs := make([]float64, p.Threads), make([]error, p.Threads)
	end := time.Now().Add(p.Duration / 3)
	now, _ := processor.ThreadClock()
	var threads sync.WaitGroup
	for thread := range p.Threads {
		threads.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			units := 0.0
			began := now()
			for i := 0; i == 0 || time.Now().Before(end); i++ {
				if errs[thread] = ctx.Err(); errs[thread] != nil {
					return
				}
				done, err := step(i % n)
				if err != nil {
					errs[thread] = err
					return
				}
				units += done
			}
			rates[thread] = units / max(now()-began, time.Nanosecond).Seconds()
		})
	}
	threads.Wait()
	sum := 0.0
	for _, rate := range rates {
		sum += rate
	}
	return sum / float64(p.Threads), errors.Join(errs...)
}

// cut makes parts of about partBytes, at line breaks or spaces where there are any.
func cut(text string) []string {
	var parts []string
	for len(text) > partBytes {
		end := partBytes
		for back := end; back > partBytes/2; back-- {
			if text[back] == '\n' || text[back] == ' ' {
				end = back
				break
			}
		}
		for end < len(text) && !utf8.RuneStart(text[end]) {
			end++
		}
		parts = append(parts, text[:end])
		text = text[end:]
	}
	return append(parts, text)
}

// classes is the least that cutting text into words asks of a character.
type classes struct {
	of [1 << 16]uint8
}

func newClasses() *classes {
	c := new(classes)
	for r := range c.of {
		switch {
		case unicode.IsLetter(rune(r)):
			c.of[r] = 1
		case unicode.IsNumber(rune(r)):
			c.of[r] = 2
		case unicode.IsSpace(rune(r)):
			c.of[r] = 3
		}
	}
	return c
}

// count is how often the class changes from one character to the next.
func (c *classes) count(text string) int {
	changes := 0
	before := uint8(0)
	for _, r := range text {
		class := uint8(1)
		if int(r) < len(c.of) {
			class = c.of[r]
		}
		if class != before {
			changes++
			before = class
		}
	}
	return changes
}
