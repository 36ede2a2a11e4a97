package mesh_test

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
)

// A process that may open too few files says so, and how many it needs.
func TestTooFewOpenFiles(t *testing.T) {
	for _, c := range []struct {
		limit uint64
		parts int
		want  string // "": enough
	}{
		{16, 3, "only 16 files open at once, and needs 224 or more: raise the limit, such as by 'ulimit -n 65536'"},
		{223, 3, "needs 224 or more"},
		{224, 3, ""},
		{256, 513, "needs 4304 or more"},
		{1 << 20, 513, ""},
	} {
		err := mesh.CheckOpenFiles(c.limit, c.parts)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d files for %d parts: %v, want %q", c.limit, c.parts, err, c.want)
		}
	}
}
