package chat

import (
	"context"
	"errors"
)

// Try renders a conversation of one question, as most are. Its error is what makes
// the template useless for it, such as a function that is not known, which no one
// can tell before the template is run; nil where the template refuses by itself.
func Try(ctx context.Context, t Template) error {
	_, err := t.Render(ctx, Conversation{Messages: []Message{{Role: "user", Content: "Hello"}}})
	if problem := (*Error)(nil); errors.As(err, &problem) && problem.Raised {
		return nil
	}
	return err
}
