package receiver

import (
	"fmt"
	"slices"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/transitions"
)

// Transition is one step of a transfer.
type Transition struct {
	from state
	on   kind
	to   state
}

// String names it as the table does.
func (x Transition) String() string {
	return fmt.Sprintf("%s, %s → %s", x.from, x.on, x.to)
}

// Allowed says whether the table has it.
func (x Transition) Allowed() bool {
	c := table()[x.from][x.on]
	return c.what != never().what && (x.to == x.from || slices.Contains(c.to, x.to))
}

// Markdown is the table for people: a row for each event, a column for each state.
func Markdown() string {
	all := table()
	return transitions.Markdown(states, kinds, func(s state, k kind) (string, []state) { return all[s][k].what, all[s][k].to })
}

func (s state) String() string {
	return [...]string{
		reserved: "reserved", open: "open", committing: "committing", ending: "ending", draining: "draining", gone: "gone",
	}[s]
}

func (k kind) String() string {
	return [kinds]string{
		onOpen: "Open", onChunk: "Chunk", onCommit: "Commit", onAbort: "Abort", onRenew: "Renew",
		onLanded: "a copy succeeds", onSpoilt: "a copy fails", onWithdrawn: "the slices to copy were recalled",
		onCancel: "the owner cancels", onDeadline: "the lease ends",
		onClosed: "this side closes the session", onBroken: "a stream of the session ends", onGone: "every stream of the session has ended",
		onShutdown: "the receiver shuts down",
	}[k]
}
