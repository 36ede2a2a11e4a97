package integration_test

import (
	"testing"

	"github.com/tandem-serving/tandem/integration/clustertest"
)

// What the user set for other meshes does not configure those of tests.
func TestEnvironmentOfOtherMeshes(t *testing.T) {
	if testing.Short() {
		t.Skip("builds programs")
	}
	t.Setenv("TANDEM_AUTH", "nonsense")
	clustertest.Launch(t, "up", clustertest.Build(t).Tandem, "up", "--model=../models/fable", "--engine=simulated",
		"--listen=127.0.0.1:0", "--http=", "--metrics=").AwaitServing(t)
}
