// Package transitions writes the table of a state machine down for people. Both sides
// of pkg/kvtransfer use it, nobody else. It starts no goroutines.
package transitions

import (
	"fmt"
	"strings"
)

// named are constants that count from 0 and have names.
type named interface {
	~int
	fmt.Stringer
}

// Markdown is a table with a row for each event and a column for each state, of so many.
// cell says what an event does in a state, and to which states it leads.
func Markdown[S, K named](states S, events K, cell func(S, K) (what string, to []S)) string {
	var b strings.Builder
	b.WriteString("| |")
	for s := range states {
		fmt.Fprintf(&b, " %s |", s)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", int(states)) + "\n")
	for k := range events {
		fmt.Fprintf(&b, "| **%s** |", k)
		for s := range states {
			what, to := cell(s, k)
			fmt.Fprintf(&b, " %s%s |", what, leads(to))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// leads is where a cell goes.
func leads[S fmt.Stringer](to []S) string {
	if len(to) == 0 {
		return ""
	}
	names := make([]string, len(to))
	for i, s := range to {
		names[i] = s.String()
	}
	return " → *" + strings.Join(names, ", ") + "*"
}
