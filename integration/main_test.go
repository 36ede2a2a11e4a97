package integration_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/integration/faultstest"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

// atOnce is how many tests run beside each other of those that do: they wait for leases
// and for processes more than they compute.
const atOnce = "6"

func TestMain(m *testing.M) {
	flag.Parse()
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "test.parallel" })
	if !asked {
		if err := flag.Set("test.parallel", atOnce); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	status := m.Run()
	if err := clustertest.RemoveBuilt(); err != nil {
		fmt.Fprintln(os.Stderr, "remove the programs that were built:", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

// transports are what KV goes over: TCP and shared pages, unless tests may take long.
func transports() []string {
	if longtest.Wanted() {
		return faultstest.Transports()
	}
	return []string{"tcp", "shm"}
}
