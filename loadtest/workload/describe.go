package workload

import (
	"fmt"
	"strings"

	"github.com/tandem-serving/tandem/loadtest/workload/trace"
)

// Describe describes the load, one item per line, for people and reports. The Spec must
// be valid. In open loop, Rate 0 stands for the rates of a search.
func (s *Spec) Describe(p Params) []string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	add("arrivals: %s", s.describeArrivals(p))
	if s.Trace != "" {
		add("trace: %s", s.describeTrace())
	}
	if !s.replays() {
		for i := range max(len(s.classes), 1) {
			prompt, output := s.distributions(i)
			add("%s: prompts of %s tokens, answers of %s%s", s.className(i), s.describeLengths(prompt), s.describeLengths(output), s.exactly())
		}
	} else if len(s.classes) > 0 {
		add("classes by weight: %s", s.classes.String())
	}
	add("prompts: %s", s.describePrompts(p))
	if s.SharedPrefixTokens > 0 {
		add("shared prefixes: %d of %d tokens, before the prompt's own", s.SharedPrefixes, s.SharedPrefixTokens)
	}
	if s.Turns.IsSet() || s.conversations() {
		turns, think := "as recorded", "at once"
		if s.Turns.IsSet() {
			turns = s.Turns.String()
			if s.conversations() {
				turns += " at most"
			}
		}
		if s.Think.IsSet() {
			think = s.Think.String() + " after the answer"
		}
		add("conversations: turns %s, the next %s; the rate counts conversations", turns, think)
	}
	if s.context(p) == maxCount {
		add("warning: the server does not say how long its context is; nothing is cut to fit it (--context-tokens)")
	}
	add("seed: %d", s.Seed)
	return lines
}

func (s *Spec) className(i int) string {
	if len(s.classes) == 0 {
		return "lengths"
	}
	return fmt.Sprintf("class %s, %.3g%%", s.classes[i].name, 100*s.classes[i].weight/s.classes.weight())
}

func (s *Spec) exactly() string {
	if s.Exact {
		return ", exactly"
	}
	return ", at most"
}

func (s *Spec) describeArrivals(p Params) string {
	if p.Concurrency > 0 {
		return fmt.Sprintf("closed loop, %d at a time", p.Concurrency)
	}
	if s.OwnTimes() {
		return fmt.Sprintf("as recorded, %g times as fast", s.Speed)
	}
	rate := fmt.Sprintf("%g a second", p.Rate)
	if p.Rate == 0 {
		rate = "at each rate"
	}
	text := fmt.Sprintf("%s, %s", s.Arrival, rate)
	switch s.Arrival {
	case Gamma:
		text = fmt.Sprintf("gamma of shape %g, %s", s.Burstiness, rate)
	case Ramp:
		text = fmt.Sprintf("ramp from %g to %s", s.RampFrom, rate)
	}
	for _, surge := range s.surges {
		text += fmt.Sprintf(", times %g from %v to %v", surge.Factor, surge.At, surge.At+surge.For)
	}
	if p.Duration > 0 {
		text += fmt.Sprintf(" for %s", p.Duration)
	}
	return text
}

func (s *Spec) describeLengths(d Distribution) string {
	if d.Empirical() {
		return fmt.Sprintf("the trace's (%d requests)", len(s.empirical))
	}
	return d.String()
}

func (s *Spec) describeTrace() string {
	text := []string{fmt.Sprintf("%s (%s)", s.Trace, s.format)}
	if s.TraceLimit > 0 {
		text = append(text, fmt.Sprintf("the first %d requests", s.TraceLimit))
	}
	if s.TraceScale != 1 {
		text = append(text, fmt.Sprintf("lengths times %g", s.TraceScale))
	}
	if s.replays() && s.format == trace.Mooncake {
		text = append(text, fmt.Sprintf("prompts share blocks of %d tokens", s.blockTokens()))
	}
	if s.replays() {
		text = append(text, "answers "+strings.TrimPrefix(s.exactly(), ", ")+" as long as recorded")
	}
	return strings.Join(text, ", ")
}

func (s *Spec) describePrompts(p Params) string {
	if !s.text(p) {
		return "token ids, uniform over the vocabulary"
	}
	from := "of common words"
	switch {
	case s.conversations():
		from = "as recorded"
	case s.TextFile != "":
		from = "cut out of " + s.TextFile
		if s.prose.partly {
			from += fmt.Sprintf(" (its first %d MiB)", maxBook>>20)
		}
	}
	return fmt.Sprintf("text %s, %g bytes taken for a token", from, s.CharsPerToken)
}
