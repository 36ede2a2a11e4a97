// Package transitions has the table of a state machine: what an event does in a state.
// Only pkg/kvtransfer uses it. It starts no goroutines.
package transitions

import (
	"fmt"
	"slices"
	"strings"
)

// named are constants that count from 0 and have names.
type named interface {
	~int
	fmt.Stringer
}

// Never describes an event that cannot occur.
const Never = "cannot happen"

// Cell is what an event does in a state: the step, its description, and the states it may
// lead to besides the current one.
type Cell[Step any, S named] struct {
	Do   Step
	What string
	To   []S
}

// Table has a row for each state with a cell for each event.
type Table[Step any, S, K named] [][]Cell[Step, S]

// Transition is one step of a state machine.
type Transition[S, K named] struct {
	from    S
	on      K
	to      S
	allowed bool
}

// Transition is a step that was taken.
func (t Table[Step, S, K]) Transition(from S, on K, to S) Transition[S, K] {
	c := t[from][on]
	return Transition[S, K]{from, on, to, c.What != Never && (to == from || slices.Contains(c.To, to))}
}

// String formats it as in the table.
func (x Transition[S, K]) String() string { return fmt.Sprintf("%s, %s → %s", x.from, x.on, x.to) }

// Allowed reports whether the table has it.
func (x Transition[S, K]) Allowed() bool { return x.allowed }

// Markdown formats the table with a row for each event and a column for each state.
func (t Table[Step, S, K]) Markdown(states S, events K) string {
	var b strings.Builder
	b.WriteString("| |")
	for s := range states {
		fmt.Fprintf(&b, " %s |", s)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", int(states)) + "\n")
	for k := range events {
		fmt.Fprintf(&b, "| **%s** |", k)
		for s := range states {
			fmt.Fprintf(&b, " %s%s |", t[s][k].What, leads(t[s][k].To))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func leads[S named](to []S) string {
	if len(to) == 0 {
		return ""
	}
	names := make([]string, len(to))
	for i, s := range to {
		names[i] = s.String()
	}
	return " → *" + strings.Join(names, ", ") + "*"
}
