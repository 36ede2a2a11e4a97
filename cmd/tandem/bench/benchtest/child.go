package benchtest

import (
	"context"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/commands"
)

// child makes a test binary the tandem that a benchmark starts.
const child = "BENCH_TEST_CHILD"

// Main is the TestMain of a benchmark that starts processes of its own program.
func Main(m *testing.M) {
	if os.Getenv(child) != "" {
		status := commands.Run(context.Background(), commands.Process{
			Args: os.Args[1:], Environ: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		})
		os.Exit(status) //nolint:forbidigo // it is the main of such a process
	}
	goleak.VerifyTestMain(m)
}

// Children lets the test start such processes.
func Children(t *testing.T) { t.Setenv(child, "1") }
