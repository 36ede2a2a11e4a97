package sender

import "github.com/tandem-serving/tandem/pkg/kvtransfer/internal/transitions"

// Transition is one step of a transfer.
type Transition = transitions.Transition[state, kind]

// Markdown is the table as docs/kv-transfer-states.md shows it.
func Markdown() string { return table().Markdown(states, kinds) }

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
