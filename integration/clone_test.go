package integration_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/integration/docstest"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

// clone is a folder that stands for a clone of the repository with tandem built: what
// commands write there is not written into the checkout.
type clone struct {
	root, tandem string
	mesh         *clustertest.Process // that the commands ask; nil: none yet
}

func newClone(t *testing.T, root, tandem string) *clone {
	t.Helper()
	c := &clone{root: t.TempDir(), tandem: tandem}
	for _, name := range []string{"README.md", "docs", "examples", "models"} {
		if err := os.Symlink(filepath.Join(root, name), filepath.Join(c.root, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"tandem": tandem, "my-model": filepath.Join(root, "models", "fable")} {
		if err := os.Symlink(target, filepath.Join(c.root, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"tmp", "var/tmp", "deploy/compose"} {
		if err := os.MkdirAll(filepath.Join(c.root, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(c.root, "tandem.yaml"), []byte("log-level: info\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// prologue of each script. A request that a server refuses is an error; tandem is
// built, and not once more for every command.
const prologue = `set -euo pipefail
PATH=$PWD:$PATH
curl() { command curl --fail --silent --show-error --max-time 60 "$@"; }
go() {
  case "$1 ${2-}" in
  "run "*cmd/tandem) shift 2; tandem "$@" ;;
  "build -o"|"test work") ;;
  *) command go "$@" ;;
  esac
}
`

// check runs the commands of a script, on a mesh of their own if they start one, or
// only checks how they are written.
func (c *clone) check(t *testing.T, where, script string, run bool) {
	t.Helper()
	if !run {
		calls, err := docstest.Calls(script)
		if err != nil {
			t.Errorf("%s: %v", where, err)
		}
		for _, call := range calls {
			c.parses(t, where, call)
		}
		return
	}
	steps, err := docstest.Steps(script)
	if err != nil {
		t.Errorf("%s: %v", where, err)
	}
	own := clone{root: c.root, tandem: c.tandem}
	defer own.stop(t)
	for _, step := range steps {
		asked := c
		if own.mesh != nil {
			asked = &own
		}
		switch {
		case step.Mesh:
			own.stop(t)
			own.start(t, step.Text)
			continue
		case asked.mesh == nil && needsMesh(step.Text):
			c.start(t, "tandem up")
		}
		asked.shell(t, where, step.Text)
	}
}

// needsMesh reports whether commands may ask a mesh: most tests need not wait for one.
func needsMesh(text string) bool {
	for _, each := range []string{"generate", "chat", "workers", "drain", "policy", "explain", "budget", "probe", "bench serve", "curl", "127.0.0.1", "examples/"} {
		if strings.Contains(text, each) {
			return true
		}
	}
	return false
}

// start starts the mesh of a command, at ports that are free.
func (c *clone) start(t *testing.T, command string) {
	t.Helper()
	command = strings.NewReplacer(c.replacements("127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0")...).Replace(command)
	command = strings.Replace(strings.TrimPrefix(strings.TrimPrefix(command, "go run ./cmd/"), "./"), "tandem", c.tandem, 1)
	const anywhere = "TANDEM_LISTEN=127.0.0.1:0 TANDEM_HTTP=127.0.0.1:0 TANDEM_METRICS=127.0.0.1:0"
	c.mesh = clustertest.Launch(t, command, "bash", "-c", fmt.Sprintf("cd %q; export %s; exec %s", c.root, anywhere, command)).AwaitServing(t)
}

// stop ends the mesh as Ctrl-C does.
func (c *clone) stop(t *testing.T) {
	t.Helper()
	if c.mesh == nil {
		return
	}
	if err := c.mesh.Terminate(t); err != nil {
		t.Errorf("%s: %v", c.mesh.Name, err)
	}
	c.mesh = nil
}

// replacements are what stands for what, of what the pages print.
func (c *clone) replacements(grpc, control, http, metrics string) []string {
	return []string{
		"127.0.0.1:7070", grpc, "127.0.0.1:7090", control, "127.0.0.1:8080", http, "127.0.0.1:9090", metrics,
		" /tmp/", " " + c.root + "/tmp/", " /var/tmp/", " " + c.root + "/var/tmp/", " DIR", " models/fable",
	}
}

func (c *clone) shell(t *testing.T, where, text string) {
	t.Helper()
	limit := clustertest.Timeout
	if longtest.Wanted() {
		limit = 5 * time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash")
	cmd.Dir, cmd.Env = c.root, append(clustertest.Environ(), "HOME="+c.root, "XDG_STATE_HOME="+c.root+"/tmp")
	if c.mesh != nil {
		grpc, control := c.mesh.Field(t, "grpc"), c.mesh.Field(t, "control")
		pairs := c.replacements(grpc, control, address(c.mesh.Field(t, "http")), address(c.mesh.Field(t, "metrics")))
		cmd.Env = append(cmd.Env, "TANDEM_ADDR="+grpc, "TANDEM_CONTROL="+control)
		if strings.Contains(text, "tandem explain") {
			id, secret := c.request(t, grpc)
			for _, stand := range []string{"REQUEST-ID", "4f1c2a90d3"} {
				pairs = append(pairs, stand, id)
			}
			pairs = append(pairs, "explain ID", "explain "+id, "SECRET", secret, "0f9be2…", secret, "ROUTER:7070", grpc, "router:7070", grpc, "ROUTER", grpc)
		}
		text = strings.NewReplacer(pairs...).Replace(text)
	} else {
		text = strings.NewReplacer(c.replacements("", "", "", "")...).Replace(text)
	}
	cmd.Args = append(cmd.Args, "-c", prologue+text)
	// What a command leaves running is ended with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	started := time.Now()
	out, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	t.Logf("%s: %v: %s", where, time.Since(started).Round(time.Millisecond), text)
	// A measurement that says how busy the machine was is no fault of the page.
	if err != nil && !bytes.Contains(out, []byte("NOT VALID: the machine was disturbed")) {
		t.Errorf("%s: %v:\n%s\nsays\n%s", where, err, text, out)
	}
}

// address is that of the first URL in a text.
func address(text string) string {
	_, text, _ = strings.Cut(text, "://")
	if end := strings.IndexAny(text, "/, "); end >= 0 {
		return text[:end]
	}
	return text
}

// request makes a request that can be asked about.
func (c *clone) request(t *testing.T, addr string) (id, secret string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), c.tandem, "generate", "--addr", addr, "--prompt", "Once", "--max-tokens", "2", "--json")
	cmd.Env = clustertest.Environ()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var result struct {
		RequestID string `json:"request_id"`
		Secret    string
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &result); err != nil {
		t.Fatal(err)
	}
	return result.RequestID, result.Secret
}

// parses checks that tandem has the command and the flags of a call, without running it.
func (c *clone) parses(t *testing.T, where, call string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-c", fmt.Sprintf("exec %q %s --help", c.tandem, call))
	cmd.Dir, cmd.Env = c.root, clustertest.Environ()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: tandem %s: %v: %s", where, call, err, out)
	}
}
