package report_test

import (
	"io"
	"strings"
	"testing"
)

// written is what f writes.
func written(t *testing.T, f func(io.Writer) error) string {
	t.Helper()
	var s strings.Builder
	if err := f(&s); err != nil {
		t.Fatal(err)
	}
	return s.String()
}
