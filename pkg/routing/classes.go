package routing

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pkg/spelling"
)

// The classes of requests.
const (
	ClassInteractive = "interactive"
	ClassStandard    = "standard"
	ClassBatch       = "batch"
)

// ClassNames are all classes.
func ClassNames() []string { return []string{ClassInteractive, ClassStandard, ClassBatch} }

// Objective is what a request wants: the time to its first token, and the mean time of each token
// after that, at most; 0 is none.
type Objective struct{ TTFT, TPOT time.Duration }

// Classes are the objectives of the classes, by name. One that is not there has none. As a flag
// it takes NAME=ttft:500ms,tpot:30ms, as often as there are classes.
type Classes map[string]Objective

// defaultClasses are far from what a mesh does that is not overloaded.
func defaultClasses() Classes {
	return Classes{
		ClassInteractive: {TTFT: 2 * time.Second, TPOT: 150 * time.Millisecond},
		ClassStandard:    {TTFT: 10 * time.Second, TPOT: 500 * time.Millisecond},
	}
}

// checkClass refuses a name that no class has.
func checkClass(name string) error { return spelling.Check("class", name, ClassNames()) }

// ParseObjective reads ttft:500ms,tpot:30ms, of which one is enough; "none" is none.
func ParseObjective(text string) (o Objective, err error) {
	if text == "none" {
		return o, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), ":")
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			return o, fmt.Errorf("%q is no objective: write ttft:500ms, tpot:30ms or both with a comma between", part)
		}
		switch name {
		case "ttft":
			o.TTFT = d
		case "tpot":
			o.TPOT = d
		default:
			return o, fmt.Errorf("%q is no objective: there are ttft and tpot", name)
		}
	}
	return o, nil
}

// Set implements pflag.Value.
func (c *Classes) Set(text string) error {
	name, objective, is := strings.Cut(text, "=")
	if !is {
		return fmt.Errorf("%q: write NAME=ttft:500ms,tpot:30ms", text)
	}
	if err := checkClass(name); err != nil {
		return err
	}
	o, err := ParseObjective(objective)
	if err != nil {
		return err
	}
	if *c == nil {
		*c = Classes{}
	}
	(*c)[name] = o
	return nil
}

// String implements pflag.Value.
func (c *Classes) String() string { return strings.Join(c.GetSlice(), " ") }

// GetSlice implements pflag.SliceValue.
func (c *Classes) GetSlice() []string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(*c)) {
		parts = append(parts, name+"="+(*c)[name].String())
	}
	return parts
}

// Append implements pflag.SliceValue.
func (c *Classes) Append(text string) error { return c.Set(text) }

// Replace implements pflag.SliceValue.
func (c *Classes) Replace(texts []string) error {
	*c = nil
	for _, text := range texts {
		if err := c.Set(text); err != nil {
			return err
		}
	}
	return nil
}

// Type implements pflag.Value.
func (*Classes) Type() string { return "objective" }

// String is as ParseObjective reads it.
func (o Objective) String() string {
	var parts []string
	if o.TTFT > 0 {
		parts = append(parts, "ttft:"+o.TTFT.String())
	}
	if o.TPOT > 0 {
		parts = append(parts, "tpot:"+o.TPOT.String())
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ",")
}

// lenient is by how many times what a request is predicted to take on an idle worker its objective
// is missed at least, if it comes from the default class: a request that asked for nothing is not
// refused for a slow machine, only for a busy one.
const lenient = 3

// objective is what a request is held to on a worker.
func (e *entry) objective(c *cost) (ttft, tpot time.Duration) {
	ttft, tpot = e.request.TTFT, e.request.TPOT
	switch {
	case e.defaultObjective && c.idle:
		return 0, 0
	case e.defaultObjective:
		if ttft > 0 {
			ttft = max(ttft, durationOf(lenient*c.prefillMs*c.doubtFirst))
		}
		if tpot > 0 {
			tpot = max(tpot, durationOf(lenient*c.aloneMs*c.doubtToken))
		}
	}
	return ttft, tpot
}
