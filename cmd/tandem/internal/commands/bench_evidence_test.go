package commands_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBenchEvidenceErrors(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	const profiles = " --profiles=../../../../docs/profiles"
	for _, c := range []struct {
		flags  string
		status int
		want   string
	}{
		{"--section=distserv" + profiles, 2, `--section: "distserv" is none of placement-tight`},
		{"--check=x.json" + profiles, 2, "--check is for the small version"},
		{"--small --long" + profiles, 2, "--small and --long exclude"},
		{"--profiles=nowhere", 2, "there is no folder nowhere"},
		{"--traces=nowhere" + profiles, 2, "there is no folder nowhere"},
		{"--out=nowhere/page.md" + profiles, 1, "--out: there is no folder "},
		{"--small --check=" + broken + profiles, 1, "is not what 'tandem bench evidence' writes"},
	} {
		checkFailure(t, run(t.Context(), "", nil, append([]string{"bench", "evidence"}, strings.Fields(c.flags)...)...), c.status, c.want)
	}
}

// The committed figures pass --check, and a file without the section fails. The small
// version of section day is empty, so that it takes no time here.
func TestBenchEvidenceCheck(t *testing.T) {
	others := filepath.Join(t.TempDir(), "others.json")
	if err := os.WriteFile(others, []byte(`{"version":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]int{"../../../../docs/evidence.json": 0, others: 1} {
		o := run(t.Context(), "", nil, "bench", "evidence", "--small", "--section=day", "--profiles=../../../../docs/profiles", "--check="+file)
		if o.status != want || want != 0 && !strings.Contains(o.stderr, "day has no small run in the file") {
			t.Errorf("%s: exit status %d, want %d: %s", file, o.status, want, o.stderr)
		}
	}
}
