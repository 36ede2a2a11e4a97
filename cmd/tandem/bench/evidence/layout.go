package evidence

import (
	"fmt"
	"strings"
)

// machine is what one worker runs on.
type machine struct {
	// name and split are for people, such as "H100" and "TP2"; either may be empty.
	name, split string
	// profile is in Options.Profiles, of a model; kvMemory is as a scenario has it.
	profile, model, kvMemory string
	// cost is in GPUs, or in dollars an hour.
	cost float64
}

// group is workers of one role on equal machines.
type group struct {
	role    string
	workers int
	machine machine
}

// layout is how machines are used: decode workers alone do both phases.
type layout struct {
	groups []group
	// whole: workers compute prompts whole, as vLLM did when DistServe was compared with it.
	// Otherwise they do so in chunks that lengthen no step by much, as by default.
	whole bool
}

// cost is that of all machines.
func (l layout) cost() (sum float64) {
	for _, g := range l.groups {
		sum += float64(g.workers) * g.machine.cost
	}
	return sum
}

// String is such as "2 prefill TP1 + 1 decode TP2" or "3 H100 prefill + 11 A100 decode".
func (l layout) String() string {
	var parts []string
	for _, g := range l.groups {
		role := g.role
		if len(l.groups) == 1 {
			role = "both"
		}
		parts = append(parts, strings.Join(strings.Fields(fmt.Sprintf("%d %s %s %s", g.workers, g.machine.name, role, g.machine.split)), " "))
	}
	text := strings.Join(parts, " + ")
	if l.whole {
		text += ", whole prompts"
	}
	return text
}

// wholeTokens is as much of a prompt as workers compute in a step, where they compute prompts whole.
const wholeTokens = 2048

// pools are the lines of a scenario below "pools".
func (l layout) pools(o Options) string {
	var out strings.Builder
	for _, g := range l.groups {
		fmt.Fprintf(&out, "  %s: {role: %s, count: %d, profile: {file: %q, model: %s}, kv-memory: %s, max-sequences: 512, max-batch-tokens: %d",
			g.role, g.role, g.workers, o.profile(g.machine.profile), g.machine.model, g.machine.kvMemory, 2*wholeTokens)
		if g.role == "prefill" || l.whole {
			fmt.Fprintf(&out, ", chunk-tokens: %d", wholeTokens)
		}
		if l.whole {
			out.WriteString(", step-budget: 0s")
		}
		out.WriteString("}\n")
	}
	return out.String()
}
