package mesh

import (
	"fmt"

	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/memory"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

// besideDraft checks the draft model before any weights are read, and says what memory it leaves.
func (p *process) besideDraft(chosen engines.Config, free memory.Left) (memory.Left, error) {
	dir, err := modeldir.Named(p.options.Decode.DraftModel, "--draft-model")
	if err != nil {
		return free, err
	}
	spec, err := model.LoadSpec(dir, model.Options{})
	if err != nil {
		return free, fmt.Errorf("--draft-model: %w", err)
	}
	if err := tokenizer.CheckSame(p.model.dir, dir); err != nil {
		return free, fmt.Errorf("--draft-model: %w", err)
	}
	return chosen.LeftBesideDraft(spec, p.options.Decode.DraftKVMemory, p.decoding(), free)
}
