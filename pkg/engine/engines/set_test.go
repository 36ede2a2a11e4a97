package engines_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/model"
)

// TestWeightCache: the log says where the weights came from and how long it took, and
// what is wrong with the cache.
func TestWeightCache(t *testing.T) {
	config := defaults()
	config.Name, config.KVMemory, config.CPU.Threads, config.CPU.WeightCache = engines.CPU, 1<<20, 1, filepath.Join(t.TempDir(), "cache")
	load := func() string {
		t.Helper()
		var log bytes.Buffer
		set, err := engines.Load(t.Context(), config, filepath.Join("..", "..", "..", "models", "fable"), model.Options{}, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		if err := set.Close(); err != nil {
			t.Error(err)
		}
		return log.String()
	}
	for _, want := range []string{"cached=false", "cached=true"} {
		if log := load(); !strings.Contains(log, want) || !strings.Contains(log, "load_seconds=") || strings.Contains(log, "level=WARN") {
			t.Errorf("the log does not say %s, or warns: %s", want, log)
		}
	}
	kept, err := filepath.Glob(filepath.Join(config.CPU.WeightCache, "*"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("the cache has %v (%v)", kept, err)
	}
	if err := os.Truncate(kept[0], 5000); err != nil {
		t.Fatal(err)
	}
	if log := load(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, kept[0]) || !strings.Contains(log, "cached=false") {
		t.Errorf("the log does not warn of a damaged file: %s", log)
	}
}
