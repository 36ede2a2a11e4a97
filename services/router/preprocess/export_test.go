package preprocess

import (
	"github.com/tandem-serving/tandem/pkg/chat"
	"github.com/tandem-serving/tandem/pkg/grammar"
)

// BoundedChat is a template that renders so many conversations at once.
func BoundedChat(t chat.Template, atOnce int) chat.Template {
	return boundedChat{t, make(chan struct{}, atOnce)}
}

// Grammars checks the forms of requests.
func (s *Models) Grammars() *grammar.Cache { return s.grammars }
