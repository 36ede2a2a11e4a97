package integration_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

// A mesh that is killed leaves folders in the one for temporary files: the next start
// takes them away, and a mesh that runs keeps its own.
func TestNextStartRemovesWhatAKilledMeshLeft(t *testing.T) {
	longtest.Only(t)
	if testing.Short() {
		t.Skip("builds programs")
	}
	b := clustertest.Build(t)
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	up := func() *clustertest.Process {
		t.Helper()
		return clustertest.Launch(t, "up", b.Tandem, "up", "--model=../models/fable", "--engine=simulated",
			"--listen=127.0.0.1:0", "--http=", "--metrics=").AwaitServing(t)
	}
	folders := func() []string {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(folder, "tandem-*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	killed := up()
	left := folders()
	if len(left) != 2 { // etcd's data, and sockets for KV
		t.Fatalf("it has %v", left)
	}
	running := up()
	all := folders()
	killed.Kill()
	for _, path := range all {
		long := time.Now().Add(-time.Hour) // a start spares what is young
		if err := os.Chtimes(filepath.Join(path, ".tandem-in-use"), long, long); err != nil {
			t.Fatal(err)
		}
	}
	next := up()
	now := folders()
	for _, path := range all {
		if there, gone := slices.Contains(now, path), slices.Contains(left, path); there == gone {
			t.Errorf("%s of the mesh that was killed: %v, there: %v", path, gone, there)
		}
	}
	for _, p := range []*clustertest.Process{running, next} {
		if err := p.Terminate(t); err != nil {
			t.Errorf("it ended with %v\n%s", err, p.Stderr())
		}
	}
	if rest := folders(); len(rest) > 0 {
		t.Errorf("left in the end: %v", rest)
	}
}
