package commands_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestVariablesThatSetNothing: a typo must not pass in silence, nor keep a part of a mesh
// from starting.
func TestVariablesThatSetNothing(t *testing.T) {
	typo := []string{"TANDEM_DECOED=3"}
	const found = "environment variable TANDEM_DECOED sets nothing (did you mean TANDEM_DECODE?)"
	for _, args := range [][]string{{"up"}, {"generate", "--prompt=x"}, {"bench", "serve"}, {"model", "inspect"}, {"config", "print", "up", "--engine=cook"}} {
		got := run(t.Context(), "", typo, args...)
		if args[0] == "config" { // it prints what is in force all the same
			if got.status != 0 || !strings.Contains(got.stderr, found) {
				t.Errorf("%v: %+v", args, got)
			}
			continue
		}
		checkFailure(t, got, 1, "tandem: "+found+": correct or unset it")
	}
	for _, c := range []struct {
		args []string
		warn bool
	}{
		{[]string{"serve", "--target=router", "--lease-ttl=1ms"}, true}, // refused after that
		{[]string{"workers", "--control=127.0.0.1:1"}, true},
		{[]string{"drain", "w", "--control=127.0.0.1:1"}, true},
		{[]string{"probe", "--timeout=1ms", "127.0.0.1:1"}, false},
		{[]string{"version"}, false},
		{[]string{"help"}, false},
		{[]string{"completion", "bash"}, false},
		{[]string{"__complete", "u"}, false},
		{nil, false},
	} {
		got := run(t.Context(), "", typo, c.args...)
		if strings.Contains(got.stderr, "correct or unset") || strings.Contains(got.stderr, found) != c.warn {
			t.Errorf("%v: %+v", c.args, got)
		}
	}
	got := run(t.Context(), "", typo, "serve", "--target=router", "--lease-ttl=1ms", "--log-format=json")
	if line, _, _ := strings.Cut(got.stderr, "\n"); !strings.HasPrefix(line, "{") || !strings.Contains(line, found) {
		t.Errorf("a log in JSON begins with %q", line)
	}
}

// TestVariablesOfOthers: whatever the tree's scripts, tests and Compose file read or set can
// be set when a command runs.
func TestVariablesOfOthers(t *testing.T) {
	variable := regexp.MustCompile(`(?:Getenv|LookupEnv|Setenv|getenv)\("(TANDEM_\w+)"|\$\{?(TANDEM_\w+)|^\s*(TANDEM_\w+): |\b(TANDEM_\w+)=`)
	found := map[string]string{}
	root := filepath.Join("..", "..", "..", "..")
	for _, folder := range []string{".ci", "Makefile", "deploy", "integration", "loadtest", "pkg", "services", "tools"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !entry.Type().IsRegular() {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil || len(text) > 1<<20 {
				return err
			}
			for line := range strings.Lines(string(text)) {
				if !strings.Contains(line, "TANDEM_") {
					continue // as most do, and the expression is slow
				}
				for _, match := range variable.FindAllStringSubmatch(line, -1) {
					found[strings.Join(match[1:], "")] = path
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found["TANDEM_LONG"] == "" || found["TANDEM_WORKER_CPUS"] == "" {
		t.Errorf("only %v were found", found)
	}
	for name, path := range found {
		if got := run(t.Context(), "", []string{name + "=1"}, "workers", "--control=127.0.0.1:1", "--timeout=1s"); strings.Contains(got.stderr, "sets nothing") {
			t.Errorf("%s of %s is not known: a command says %q", name, path, got.stderr)
		}
	}
}

// What says how a router is reached counts for 'keys create' as for all others, though what the key
// may do is said each time.
func TestKeysCreateKnowsTheRouter(t *testing.T) {
	for variable, want := range map[string]string{
		"TANDEM_CA=/none/ca.crt": "/none/ca.crt", "TANDEM_CERT=/none/tls.crt": "needs --ca", "TANDEM_TENANT=acme": "--tenant is missing",
	} {
		args := []string{"keys", "create"}
		if !strings.HasPrefix(variable, "TANDEM_TENANT") {
			args = append(args, "--tenant", "acme")
		}
		if o := run(t.Context(), "", []string{variable}, args...); o.status == 0 || !strings.Contains(o.stderr, want) {
			t.Errorf("%s: %d %q, want %q", variable, o.status, o.stderr, want)
		}
	}
}
