// Package longtest keeps tests that take long out of a plain `go test`. They run where
// TANDEM_LONG is 1, as it is in .ci/run.
package longtest

import (
	"os"
	"testing"
)

// Wanted reports whether tests may take long.
func Wanted() bool { return os.Getenv("TANDEM_LONG") == "1" }

// Only skips a test unless tests may take long.
func Only(t testing.TB) {
	t.Helper()
	if !Wanted() {
		t.Skip("takes long: set TANDEM_LONG=1, as .ci/run does")
	}
}
