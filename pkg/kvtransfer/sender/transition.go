package sender

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
		waiting: "waiting", opening: "opening", open: "open", committing: "committing", aborting: "aborting", reading: "reading", over: "over",
	}[s]
}

func (k kind) String() string {
	return [kinds]string{
		onOpenSent: "Open is sent", onCommitSent: "Commit is sent over a stripe", onAbortSent: "Abort is sent over a stripe",
		onAccept: "Accept", onRefuse: "Refuse", onCommitted: "Committed", onFailed: "Failed", onDrained: "Drained",
		onOffer: "the owner offers slices", onCommit: "the owner commits", onAbort: "the owner aborts",
		onRead: "pages were read", onUnreadable: "pages could not be read", onDeadline: "the deadline passes",
		onLost: "a stream of the session ends",
	}[k]
}
