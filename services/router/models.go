package router

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

// model looks a model up: by its name, or else by an alias.
func (s *Service) model(name string) (Model, error) {
	if name == "" {
		if len(s.models) == 1 {
			return s.deps.Models[0], nil
		}
		return Model{}, rpc.InvalidArgument("model", "several models are served: name one of "+s.modelNames())
	}
	if m, ok := s.models[name]; ok {
		return m, nil
	}
	for _, m := range s.deps.Models {
		for _, alias := range m.Aliases {
			if matches, err := path.Match(alias, name); err == nil && matches {
				return m, nil
			}
		}
	}
	return Model{}, rpc.Error(codes.NotFound, reasonModelNotFound,
		fmt.Sprintf("model %q is not served here; there is %s", shorten(name), s.modelNames()), 0)
}

func (s *Service) modelNames() string {
	return strings.Join(slices.Sorted(maps.Keys(s.models)), ", ")
}

// CheckAlias says what is wrong with a model's alias, if anything is.
func CheckAlias(alias string) error {
	if _, err := path.Match(alias, ""); err != nil || alias == "" {
		return fmt.Errorf("%q is no alias: give a name, or a pattern such as gpt-*", alias)
	}
	return nil
}

// listModels describes the models that are served, sorted by name.
func (s *Service) listModels() []*inferencev1.Model {
	out := make([]*inferencev1.Model, 0, len(s.deps.Models))
	for _, m := range s.deps.Models {
		out = append(out, described(m))
	}
	slices.SortFunc(out, func(a, b *inferencev1.Model) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out
}

func described(m Model) *inferencev1.Model {
	return &inferencev1.Model{
		Name:           m.Spec.Name,
		ContextTokens:  uint32(m.Spec.ContextTokens),
		VocabularySize: uint32(m.Spec.VocabSize),
		Digest:         m.Spec.Digest,
	}
}
