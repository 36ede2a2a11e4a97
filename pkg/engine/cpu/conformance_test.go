package cpu_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/enginetest"
)

func TestConformance(t *testing.T) {
	w := loadFable(t, 2)
	fresh := func(t *testing.T) engine.Engine {
		return newEngine(t, w, cpu.Config{Blocks: 40, MaxBatchTokens: 64, MaxSequences: 6})
	}
	enginetest.Run(t, fresh)
	t.Run("logits", func(t *testing.T) { enginetest.RunLogits(t, fresh) })
}
