package preprocess

import (
	"errors"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/chat"
	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
	"github.com/tandem-serving/tandem/pkg/toolcalls"
	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// Model is one model that can be asked for.
type Model struct {
	// Spec describes it. An empty Digest, of a router that has not read the
	// weights, takes workers by the model's name.
	Spec      model.Spec
	Tokenizer *tokenizer.Tokenizer
	// Chat makes prompts of conversations; nil: conversations are refused, and
	// ChatError says why.
	Chat      chat.Template
	ChatError error
	// ToolCallParser is the format of the calls that it makes: a name of package toolcalls,
	// ToolCallsNone, or ToolCallsAuto or empty for that of its chat template.
	ToolCallParser string
	// Aliases are further names that mean this model, or patterns of path.Match.
	// A model's own name counts more, and then the first model with an alias.
	Aliases []string

	rendering  chan struct{}         // has a place for each conversation that is rendered at once
	handling   chan struct{}         // has a place for each long text that is handled at once
	sampling   *inferencev1.Sampling // the defaults
	calls      toolcalls.Format      // of tools, how they are written
	knowsCalls bool                  // it is what the model has learned
	markers    []string              // special tokens that they are written with
	endTurn    []int32               // ends answers of a conversation, beside Spec.EOS; or none
}

// Models are the models that can be asked for. They are safe for concurrent use.
type Models struct {
	list           []Model // as they were given
	maxRequestTime time.Duration
	grammars       *grammar.Cache // to check them
}

// NewModels checks models, and their sampling defaults by generationConfig.
func NewModels(list []Model, generationConfig string, maxRequestTime time.Duration) (*Models, error) {
	if len(list) == 0 {
		return nil, errors.New("no model is given")
	}
	s := &Models{list: slices.Clone(list), maxRequestTime: maxRequestTime, grammars: grammar.NewCache(nil)}
	rendering, handling := make(chan struct{}, runtime.GOMAXPROCS(0)), make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range s.list {
		m := &s.list[i]
		if s.Named(m.Spec.Name) != m {
			return nil, fmt.Errorf("two models are called %q; give one of them another name", m.Spec.Name)
		}
		for _, alias := range m.Aliases {
			if err := CheckAlias(alias); err != nil {
				return nil, fmt.Errorf("model %s: %w", m.Spec.Name, err)
			}
		}
		if m.Chat != nil {
			source := ""
			if form, knows := m.Chat.(chat.AnswerForm); knows {
				m.endTurn, source = endTurn(m, form.EndToken()), form.ToolSource()
			}
			m.findToolCalls(source)
		}
		m.rendering, m.handling = rendering, handling
		var err error
		if m.sampling, err = samplingDefaults(generationConfig, m.Spec); err != nil {
			return nil, fmt.Errorf("generation_config.json of model %q: %w; correct it, or ignore it with --generation-config=%s", m.Spec.Name, err, GenerationConfigNone)
		}
	}
	return s, nil
}

// endTurn is the token that ends a turn by the model's chat template, if its
// configuration does not have it already.
func endTurn(m *Model, token string) []int32 {
	if m.Tokenizer == nil {
		return nil
	}
	id, is := m.Tokenizer.TokenID(token)
	if !is || slices.Contains(m.Spec.EOS, id) {
		return nil
	}
	return []int32{id}
}

// Named is the model with a name; nil: there is none.
func (s *Models) Named(name string) *Model {
	if i := slices.IndexFunc(s.list, func(m Model) bool { return m.Spec.Name == name }); i >= 0 {
		return &s.list[i]
	}
	return nil
}

// Names are the models' names, sorted, for people.
func (s *Models) Names() string {
	var names []string
	for _, m := range s.list {
		names = append(names, m.Spec.Name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// Model looks a model up: by its name, or else by an alias.
func (s *Models) Model(name string) (*Model, error) {
	if name == "" {
		if len(s.list) == 1 {
			return &s.list[0], nil
		}
		return nil, rpc.InvalidArgument("model", "several models are served: name one of "+s.Names())
	}
	if m := s.Named(name); m != nil {
		return m, nil
	}
	for i := range s.list {
		for _, alias := range s.list[i].Aliases {
			if matches, err := path.Match(alias, name); err == nil && matches {
				return &s.list[i], nil
			}
		}
	}
	return nil, rpc.Error(codes.NotFound, api.ReasonModelNotFound,
		fmt.Sprintf("model %q is not served here; there is %s", clienterr.Shorten(name), s.Names()), 0)
}

// CheckAlias says what is wrong with a model's alias, if anything is.
func CheckAlias(alias string) error {
	if _, err := path.Match(alias, ""); err != nil || alias == "" {
		return fmt.Errorf("%q is no alias: give a name, or a pattern such as gpt-*", alias)
	}
	return nil
}

// Described are the models that are served, sorted by name.
func (s *Models) Described() []*inferencev1.Model {
	out := make([]*inferencev1.Model, 0, len(s.list))
	for i := range s.list {
		out = append(out, s.list[i].Described())
	}
	slices.SortFunc(out, func(a, b *inferencev1.Model) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out
}

// Described is the model as clients see it.
func (m *Model) Described() *inferencev1.Model {
	return &inferencev1.Model{
		Name:           m.Spec.Name,
		ContextTokens:  uint32(m.Spec.ContextTokens),
		VocabularySize: uint32(m.Spec.VocabSize),
		Digest:         m.Spec.Digest,
		HiddenSize:     uint32(m.Spec.HiddenSize),
	}
}
