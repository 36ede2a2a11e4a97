package sender_test

import (
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
)

// Pages are released once read, before the receiver decides the outcome.
func TestReleased(t *testing.T) {
	released := sender.Released{ID: 1}
	for _, test := range []struct {
		name string
		do   func(c *sender.Core) []sender.Action
		want bool
	}{
		{"offered, not committed", write, false},
		{"committed, not sent", func(c *sender.Core) []sender.Action {
			return handle(c, start, sender.Commit{ID: 1})
		}, false},
		{"committed, being read", func(c *sender.Core) []sender.Action {
			handle(c, start, sender.WriterReady{})
			return handle(c, start, sender.Commit{ID: 1})
		}, false},
		{"committed, read", func(c *sender.Core) []sender.Action {
			handle(c, start, sender.Commit{ID: 1})
			return write(c)
		}, true},
		{"read, committed", func(c *sender.Core) []sender.Action {
			write(c)
			return handle(c, start, sender.Commit{ID: 1})
		}, true},
		{"aborted, not sent", func(c *sender.Core) []sender.Action {
			return handle(c, start, sender.Abort{ID: 1})
		}, true},
		{"aborted, being read", func(c *sender.Core) []sender.Action {
			handle(c, start, sender.WriterReady{})
			return handle(c, start, sender.Abort{ID: 1})
		}, false},
		{"lost", func(c *sender.Core) []sender.Action {
			return handle(c, start, sender.StreamLost{})
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := opened(t, 1)
			offer(c, 1, 0, 2, 4)
			if got := slices.Contains(test.do(c), sender.Action(released)); got != test.want {
				t.Errorf("released: %v, want %v", got, test.want)
			}
		})
	}
}
