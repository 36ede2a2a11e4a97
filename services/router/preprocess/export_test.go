package preprocess

import "github.com/tandem-serving/tandem/pkg/grammar"

// Grammars checks the forms of requests.
func (s *Models) Grammars() *grammar.Cache { return s.grammars }
