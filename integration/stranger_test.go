package integration_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestComposeProject: what Compose starts is called tandem, and not after the folder that
// its file is in, by docker-compose 1.29 as well, which refuses a name in that file.
func TestComposeProject(t *testing.T) {
	folder := filepath.Join(checkoutRoot(t), "deploy", "compose")
	settings, err := os.ReadFile(filepath.Join(folder, ".env"))
	if err != nil || !regexp.MustCompile(`(?m)^COMPOSE_PROJECT_NAME=tandem$`).Match(settings) {
		t.Errorf("error %v; .env says:\n%s", err, settings)
	}
	compose, err := os.ReadFile(filepath.Join(folder, "compose.yaml"))
	if err != nil || regexp.MustCompile(`(?m)^name:`).Match(compose) {
		t.Errorf("error %v; or compose.yaml has a name, which docker-compose 1.29 refuses", err)
	}
}

// TestServersWithoutLinters: to get etcd and NATS, nobody has to build buf and the linter.
func TestServersWithoutLinters(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("make is not here")
	}
	for target, want := range map[string]string{
		"servers": "bash tools/build servers", "lint": "bash tools/build checkers", "generate": "bash tools/build checkers",
		"tools": "bash tools/build servers bash tools/build checkers",
	} {
		// BIN is a folder in which nothing is built yet.
		cmd := exec.CommandContext(t.Context(), "make", "--dry-run", "BIN="+t.TempDir(), target)
		cmd.Dir = checkoutRoot(t)
		out, err := cmd.CombinedOutput()
		var builds []string
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, "bash tools/build") {
				builds = append(builds, strings.TrimSpace(line))
			}
		}
		if got := strings.Join(builds, " "); err != nil || got != want {
			t.Errorf("make %s: %q, want %q (%v)", target, got, want, err)
		}
	}
}
