package integration_test

import (
	"fmt"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/integration/cluster"
)

// The behaviours of a mesh in this process.
func TestInProcessBehaviours(t *testing.T) {
	check(t, cluster.Start(t, slowly))
}

// The behaviours of a mesh of processes.
func TestProcessesBehaviours(t *testing.T) {
	if testing.Short() {
		t.Skip("builds programs and waits for leases")
	}
	t.Parallel() // much of it is waiting
	check(t, cluster.StartProcesses(t, cluster.Build(t), 2, 2,
		"--engine="+mesh.EngineSimulated, "--lease-ttl="+lease.String(), fmt.Sprintf("--simulated-base-ms=%d", simulatedMs)))
}
