package commands_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A comparison with nothing does not pass.
func TestCompareRefusesReportsOfNothing(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const head = `{"schema": "tandem.bench.serve/1.0"`
	full := file("full.json", head+`, "requests": 100, "completed": 100, "completed_rps": 10, "goodput_rps": 10}`)
	slower := file("none-good.json", head+`, "requests": 100, "completed": 100, "completed_rps": 10, "goodput_rps": 0}`)
	interrupted := file("interrupted.json", head+`, "interrupted": true}`)
	for _, test := range []struct {
		before, after string
		status        int
		want          string
	}{
		{full, full, 0, "0 significant regressions"},
		{full, interrupted, 1, "AFTER holds no completed requests: nothing to compare"},
		{full, file("schema.json", head+"}"), 1, "AFTER holds no completed requests: nothing to compare"},
		{interrupted, full, 1, "BEFORE holds no completed requests: nothing to compare"},
		{full, slower, 1, "1 figures got worse"},
		{full, file("array.json", "[]"), 1, "array.json: not a report of bench serve: expected an object at line 1, column 1"},
		{full, file("negative.json", head+`, "ttft_ms": {"p99": -1}}`), 1, "negative.json: read report: ttft_ms.p99 is -1"},
	} {
		got := run(t.Context(), "", nil, "bench", "compare", test.before, test.after)
		if got.status != test.status || !strings.Contains(got.stdout+got.stderr, test.want) {
			t.Errorf("%s and %s: status %d, want %d and %q\n%s%s", test.before, test.after, got.status, test.status, test.want, got.stdout, got.stderr)
		}
	}
}
