package cpu_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/enginetest"
)

func TestConformance(t *testing.T) {
	w := loadFable(t, 2)
	for _, kv := range []cpu.KVType{cpu.KVBF16, cpu.KVInt8} {
		t.Run(string(kv), func(t *testing.T) {
			fresh := func(t *testing.T) engine.Engine {
				return newEngine(t, w, cpu.Config{KV: kv, Blocks: 40, MaxBatchTokens: 64, MaxSequences: 6})
			}
			enginetest.Run(t, fresh)
			t.Run("logits", func(t *testing.T) { enginetest.RunLogits(t, fresh) })
		})
	}
}
