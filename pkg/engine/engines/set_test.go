package mesh_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
)

// TestWeightCache: the log says where the weights came from and how long it took, and
// what is wrong with the cache.
func TestWeightCache(t *testing.T) {
	o := upOptions(t).Options
	o.Engine.Name, o.Engine.Threads, o.Engine.CPUWeightCache = mesh.EngineCPU, 1, filepath.Join(t.TempDir(), "cache")
	load := func() string {
		t.Helper()
		var log bytes.Buffer
		if err := mesh.LoadEngines(t.Context(), o, slog.New(slog.NewTextHandler(&log, nil))); err != nil {
			t.Fatal(err)
		}
		return log.String()
	}
	for _, want := range []string{"cached=false", "cached=true"} {
		if log := load(); !strings.Contains(log, want) || !strings.Contains(log, "load_seconds=") || strings.Contains(log, "level=WARN") {
			t.Errorf("the log does not say %s, or warns: %s", want, log)
		}
	}
	kept, err := filepath.Glob(filepath.Join(o.Engine.CPUWeightCache, "*"))
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
