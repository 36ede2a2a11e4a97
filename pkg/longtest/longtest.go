// Package longtest keeps slow tests out of a plain `go test`. They run if TANDEM_LONG is 1, as
// in .ci/run; a few that add little to the others run only if it is "all". Some that `go test`
// runs are left out with -short. Only tests import it. It starts no goroutines.
package longtest

import (
	"os"
	"testing"
)

// Wanted reports whether tests may take long.
func Wanted() bool { return os.Getenv("TANDEM_LONG") == "1" || All() }

// All reports whether even those are wanted that .ci/run leaves out.
func All() bool { return os.Getenv("TANDEM_LONG") == "all" }

// Only skips a test unless tests may take long.
func Only(t testing.TB) {
	t.Helper()
	if !Wanted() {
		t.Skip("takes long: set TANDEM_LONG=1, as .ci/run does")
	}
}

// OneGoroutine skips a test that takes long with -short, which is how .ci/run calls the race detector:
// one goroutine has no races.
func OneGoroutine(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long, and has one goroutine")
	}
}
