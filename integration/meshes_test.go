package integration_test

import (
	"fmt"
	"testing"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

// The behaviours of a mesh in this process.
func TestInProcessBehaviours(t *testing.T) {
	check(t, clustertest.Start(t, slowly))
}

// The behaviours of a mesh of processes.
func TestProcessesBehaviours(t *testing.T) {
	longtest.Only(t)
	t.Parallel() // much of it is waiting
	check(t, clustertest.StartProcesses(t, clustertest.Build(t), 2, 2,
		"--engine="+engines.Simulated, "--lease-ttl="+lease.String(), fmt.Sprintf("--simulated-base-ms=%d", simulatedMs)))
}
