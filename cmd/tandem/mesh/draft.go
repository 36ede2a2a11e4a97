package mesh

import (
	"fmt"

	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// draftBytes checks the draft model before any weights are read, and says what it takes.
func (p *process) draftBytes(chosen engines.Config) (int64, error) {
	dir, err := modeldir.Named(p.options.Decode.DraftModel, "--draft-model")
	if err != nil {
		return 0, err
	}
	spec, err := model.LoadSpec(dir, model.Options{})
	if err != nil {
		return 0, fmt.Errorf("--draft-model: %w", err)
	}
	if err := tokenizer.CheckSame(p.model.dir, dir); err != nil {
		return 0, fmt.Errorf("--draft-model: %w", err)
	}
	return chosen.DraftBytes(spec, p.options.Decode.DraftKVMemory, p.decoding())
}
