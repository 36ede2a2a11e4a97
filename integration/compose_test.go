package integration_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/tandem-serving/tandem/integration/clustertest"
)

// composeEnvironment names the compose to run, such as "docker compose". Without
// it, the tests over containers skip: `make integration` sets it.
const composeEnvironment = "TANDEM_COMPOSE"

// startCompose brings up a project of its own.
func startCompose(t *testing.T, name string, workers int, env ...string) *clustertest.Compose {
	t.Helper()
	return clustertest.StartCompose(t, composeCommand(t), composeProject(name), workers, workers, env...)
}

// composeCommand is the compose to run; without one the test is skipped.
func composeCommand(t *testing.T) string {
	t.Helper()
	command := os.Getenv(composeEnvironment)
	if command == "" {
		t.Skipf("%s names no compose: make integration runs this over containers", composeEnvironment)
	}
	return command
}

// composeProject is the name of a project of the test's own.
func composeProject(name string) string {
	project := os.Getenv("TANDEM_COMPOSE_PROJECT")
	if project == "" {
		project = fmt.Sprintf("tandem-test-%d", os.Getpid())
	}
	return project + "-" + name
}

// What users deploy, as they deploy it, serves the bundled model.
func TestComposeServesTheBundledModel(t *testing.T) {
	m := startCompose(t, "fable", 1, "TANDEM_THREADS=1").Router()
	asks := askReference(t, clustertest.Start(t, nil).Client, 60)
	for _, b := range []struct {
		name string
		run  func(*testing.T, *clustertest.Client)
	}{
		{"a prefix is found again", prefixIsFoundAgain},
		{"the first token is the last", firstTokenIsTheLast},
		{"timings add up", timingsAddUp},
		{"bad input", badInput},
		{"the same tokens as in one process", func(t *testing.T, m *clustertest.Client) {
			load := clustertest.StartLoad(t, m, streams, asks)
			load.AwaitServed(t, 3*len(asks))
			load.Stop(t)
		}},
	} {
		t.Run(b.name, func(t *testing.T) { b.run(t, m) })
	}
	m.AwaitIdle(t)
}

// Everything that may happen to a mesh, over containers.
func TestComposeBehaviours(t *testing.T) {
	check(t, startCompose(t, "behaviours", 2, "TANDEM_ENGINE=simulated", "TANDEM_LEASE_TTL="+lease.String(), fmt.Sprintf("TANDEM_SIMULATED_BASE_MS=%d", simulatedMs)))
}
