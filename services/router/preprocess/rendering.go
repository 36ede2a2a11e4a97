package preprocess

import (
	"context"

	"github.com/tandem-serving/tandem/pkg/chat"
)

// boundedChat renders no more conversations at once than slots has places: each
// takes a core, and memory of its own.
type boundedChat struct {
	template chat.Template
	slots    chan struct{}
}

// Render implements chat.Template. The wait for a place counts as the request's.
func (b boundedChat) Render(ctx context.Context, c chat.Conversation) (string, error) {
	select {
	case b.slots <- struct{}{}:
		defer func() { <-b.slots }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	return b.template.Render(ctx, c)
}
