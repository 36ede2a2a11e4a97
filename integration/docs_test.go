package integration_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/integration/docstest"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

// pagesOfUsers are the pages whose commands users copy.
func pagesOfUsers(t *testing.T, root string) (pages []string) {
	t.Helper()
	pages, err := fs.Glob(os.DirFS(root), "*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"docs", "deploy", "examples"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".md") {
				var page string
				if page, err = filepath.Rel(root, path); err == nil {
					pages = append(pages, page)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return pages
}

// TestCommandsOfThePages runs the commands in the pages. The blocks of a page run in order
// in one folder, so that one can use the files of another.
func TestCommandsOfThePages(t *testing.T) {
	t.Parallel() // much of it is waiting
	root := checkoutRoot(t)
	tandem := clustertest.Build(t).Tandem
	blocks := 0
	for _, page := range pagesOfUsers(t, root) {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		found := docstest.Blocks(page, string(text))
		if blocks += len(found); len(found) == 0 {
			continue
		}
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			c := newClone(t, root, tandem)
			for _, b := range found {
				where := fmt.Sprintf("%s:%d", page, b.Line)
				if b.Fault != "" {
					t.Errorf("%s: %s", where, b.Fault)
					continue
				}
				c.check(t, where, b.Text, b.Run && (!b.Long || longtest.Wanted()))
			}
		})
	}
	if blocks < 20 {
		t.Errorf("the pages have only %d blocks of commands", blocks)
	}
}

// examples of the commands' help that are not run, or only in long tests, by their
// beginnings.
var examples = []struct {
	begins, reason string
	long           bool
}{
	{"tandem bench client", "takes both cores for a minute", false},
	{"tandem bench compare", "fails if the machine was busier meanwhile", false},
	{"tandem bench engine", "takes half a minute, or a GPU", false},
	{"tandem bench engine --model models/fable", "takes 12 s", true},
	{"tandem bench evidence", "takes minutes", false},
	{"tandem bench grammar", "takes half a minute of a processor", false},
	{"tandem bench handover", "takes minutes", false},
	{"tandem bench modes", "takes an hour", false},
	{"tandem bench overload", "takes minutes, and a mesh with room", false},
	{"tandem bench router", "takes both cores for half a minute", false},
	{"tandem bench scheduler --scenario long-prompt", "needs a profile of a larger model, or takes minutes", false},
	{"tandem bench serve", "takes from half a minute to an hour, or another server", false},
	{"tandem bench simulated", "takes minutes", false},
	{"tandem bench speculation", "takes seconds to minutes", false},
	{"tandem bench speculation --model models/fable", "takes some seconds", true},
	{"tandem bench tokenizer", "takes 6 s", false},
	{"tandem simulate docs/scenarios/ratio.yaml --find-max", "takes half a minute", false},
	{"cat docs/*.md | tandem bench tokenizer", "takes 6 s", true},
	{"tandem bench tracing", "takes minutes", false},
	{"tandem bench transfer", "takes minutes and gigabytes", false},
	{"tandem completion fish", "writes to where the shell looks", false},
	{"tandem completion zsh", "writes to where the shell looks", false},
	{"tandem doctor --etcd", "needs an etcd and a NATS server at their usual ports", false},
	{"tandem drain", "names a worker", false},
	{"tandem etcd-auth", "needs an etcd with certificates", false},
	{"tandem keys revoke", "names a key", false},
	{"tandem plan --trace", "needs a trace", false},
	{"tandem plan verify", "takes minutes, and a mesh with the simulated engine", false},
	{"tandem policy set --version", "names weights that no worker has", false},
	{"tandem probe --service", "needs a worker at a path of its own", false},
	{"tandem profile", "takes a minute", false},
	{"tandem profile --threads 1", "takes a minute", true},
	{"tandem profile --preset", "takes five minutes", false},
	{"tandem profile --from-distserve", "needs a file that DistServe publishes", false},
	{"tandem replay", "needs the log of a mesh that was recorded", false},
	{"tandem serve", "runs until it is stopped", false},
	{"tandem top", "runs until it is stopped", false},
	{"tandem top --once", "ends, but fits the line above", true},
	{"tandem undrain", "names a worker", false},
	{"tandem workers --watch", "runs until it is stopped", false},
}

// shorter are flags that are added to examples which measure for longer than it takes to see
// that they work, by their beginnings.
var shorter = map[string]string{
	"tandem profile --threads 1":              " --duration 2s",
	"tandem bench engine --model ":            " --rounds 1 --limits 0s",
	"tandem bench speculation --model ":       " --rounds 1",
	"cat docs/*.md | tandem bench tokenizer ": " --duration 1s",
}

// TestExamplesOfTheHelp runs the examples of every command.
func TestExamplesOfTheHelp(t *testing.T) {
	t.Parallel() // much of it is waiting
	root := checkoutRoot(t)
	tandem := clustertest.Build(t).Tandem
	seen := make([]bool, len(examples))
	commands := commandsOf(t, tandem)
	if len(commands) < 30 {
		t.Errorf("found only the commands %q", commands)
	}
	c := newClone(t, root, tandem)
	done := make(map[string]bool)
	for _, command := range commands {
		lines := examplesOf(t, tandem, command)
		for i := range lines { // the help says the command as it was called
			lines[i] = strings.ReplaceAll(lines[i], tandem, "tandem")
		}
		if len(lines) == 0 {
			t.Errorf("tandem %s has no examples", command)
		}
		for _, line := range lines {
			if done[line] {
				continue
			}
			done[line] = true
			run := true
			for i, e := range examples { // the last one that fits
				if strings.HasPrefix(line, e.begins) {
					seen[i], run = true, e.long && longtest.Wanted()
				}
			}
			for begins, flags := range shorter {
				if strings.HasPrefix(line, begins) {
					line += flags
				}
			}
			c.check(t, "tandem "+command+" --help", line, run)
		}
	}
	for i, e := range examples {
		if !seen[i] {
			t.Errorf("no example begins with %q any more", e.begins)
		}
	}
}

// commandsOf are the commands of a binary, of all levels.
func commandsOf(t *testing.T, tandem string, above ...string) (paths []string) {
	t.Helper()
	out, err := exec.Command(tandem, append(append([]string{"__complete"}, above...), "")...).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		name, about, is := strings.Cut(strings.TrimSpace(line), "\t")
		if !is || about == "" || strings.HasPrefix(name, "-") || len(above) > 0 && above[0] == "help" {
			continue
		}
		path := append(append([]string{}, above...), name)
		paths = append(append(paths, strings.Join(path, " ")), commandsOf(t, tandem, path...)...)
	}
	return paths
}

// examplesOf are the lines of examples that a command's help prints.
func examplesOf(t *testing.T, tandem, command string) (lines []string) {
	t.Helper()
	out, err := exec.Command(tandem, append(strings.Fields(command), "--help")...).Output()
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(out), "\nExamples:\n")
	section, _, _ = strings.Cut(section, "\n\n")
	section = regexp.MustCompile(`\\\n *`).ReplaceAllString(section, "") // a line that goes on below
	for line := range strings.Lines(section) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines
}
