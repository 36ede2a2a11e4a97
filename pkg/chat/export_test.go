package chat

import "github.com/tandem-serving/tandem/pkg/chat/internal/jinja"

// With is a template that renders with other limits, or another clock.
func With(t Template, o jinja.Options) Template {
	s := *t.(*set)
	s.options = o
	return &s
}
