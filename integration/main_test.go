package integration_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/tandem-serving/tandem/integration/cluster"
)

func TestMain(m *testing.M) {
	status := m.Run()
	if err := cluster.RemoveBuilt(); err != nil {
		fmt.Fprintln(os.Stderr, "remove the programs that were built:", err)
		status = max(status, 1)
	}
	os.Exit(status)
}
