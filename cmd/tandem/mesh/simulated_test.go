package mesh_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
)

// What can be found only at the start is refused: a profile that is not there,
// trouble for nobody.
func TestUpRefusesProfileAndTrouble(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "p.json")
	if err := os.WriteFile(broken, []byte(`{"version":1`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		says string
		set  func(*engines.Config)
	}{
		{"no such file", func(e *engines.Config) { e.Profile = filepath.Join(t.TempDir(), "none.json") }},
		{"the file is truncated", func(e *engines.Config) { e.Profile = broken }},
		{"no worker of this process is called decode-9", func(e *engines.Config) { e.Simulated.Slow = []string{"decode-9=2"} }},
		{"does not hold one block", func(e *engines.Config) { e.KVMemory = 1 }},
	} {
		o := upOptions(t)
		c.set(&o.Engine)
		ctx, cancel := context.WithCancel(t.Context())
		err := mesh.Run(ctx, o, quiet, prometheus.NewRegistry(), ignore, func(mesh.Up) { cancel() })
		cancel()
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("error %v, which should speak of %q", err, c.says)
		}
	}
}
