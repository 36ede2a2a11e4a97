package integration_test

import (
	"fmt"
	"testing"

	"github.com/tandem-serving/tandem/integration/cluster"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

// The behaviours of a mesh in this process.
func TestInProcessBehaviours(t *testing.T) {
	check(t, cluster.Start(t, slowly))
}

// The behaviours of a mesh of processes.
func TestProcessesBehaviours(t *testing.T) {
	longtest.Only(t)
	t.Parallel() // much of it is waiting
	check(t, cluster.StartProcesses(t, cluster.Build(t), 2, 2,
		"--engine="+engines.Simulated, "--lease-ttl="+lease.String(), fmt.Sprintf("--simulated-base-ms=%d", simulatedMs)))
}
