package simulated_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/enginetest"
)

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name        string
		blockTokens int
	}{{"blocks of a few", 4}, {"an odd size", 7}, {"a batch in one block", 64}} {
		t.Run(c.name, func(t *testing.T) {
			enginetest.Run(t, func(t *testing.T) engine.Engine {
				cfg := config()
				cfg.Blocks, cfg.BlockTokens = 400/c.blockTokens+32, c.blockTokens
				return newEngine(t, cfg)
			})
		})
	}
}
