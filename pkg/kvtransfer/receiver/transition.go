package receiver

import "github.com/tandem-serving/tandem/pkg/kvtransfer/internal/transitions"

// Transition is one step of a transfer.
type Transition = transitions.Transition[state, kind]

// Markdown is the table as docs/kv-transfer-states.md shows it.
func Markdown() string { return table().Markdown(states, kinds) }

func (s state) String() string {
	return [...]string{
		reserved: "reserved", open: "open", committing: "committing", ending: "ending", draining: "draining", gone: "gone",
	}[s]
}

func (k kind) String() string {
	return [kinds]string{
		onOpen: "Open", onChunk: "Chunk", onCommit: "Commit", onAbort: "Abort", onRenew: "Renew",
		onLanded: "a copy succeeds", onCopyFailed: "a copy fails", onWithdrawn: "the slices to copy were recalled",
		onCancel: "the owner cancels", onDeadline: "the lease ends",
		onClosed: "this side closes the session", onBroken: "a stream of the session ends", onGone: "every stream of the session has ended, and its mapping",
		onShutdown: "the receiver shuts down",
	}[k]
}
