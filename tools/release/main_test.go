package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// repository is one of two modules, in which the test then is, with an empty folder for scratch.
func repository(t *testing.T) (scratch string) {
	t.Helper()
	root := t.TempDir()
	t.Chdir(root)
	scratch = t.TempDir()
	t.Setenv("TMPDIR", scratch)
	for name, text := range map[string]string{
		"LICENSE":  "none\n",
		"go.work":  "go 1.24\n\nuse (\n\t./a\n\t./b\n)\n",
		"a/go.mod": "module example.com/x/a\n\ngo 1.24\n",
		"b/go.mod": "module example.com/x/b\n\ngo 1.24\n\nrequire example.com/x/a v0.0.0\n\nreplace example.com/x/a => ../a\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := git(root, "init", "--quiet"); err != nil {
		t.Fatal(err)
	}
	if _, err := commit(root, "first"); err != nil {
		t.Fatal(err)
	}
	return scratch
}

func TestTags(t *testing.T) {
	scratch := repository(t)
	check := func(when string, want ...string) {
		t.Helper()
		if tags, err := git(".", "tag", "--list"); err != nil || tags != strings.Join(want, "\n") {
			t.Errorf("%s: tags %q, %v, want %q", when, tags, err, want)
		}
		if left, err := os.ReadDir(scratch); err != nil || len(left) > 0 {
			t.Errorf("%s: %v is left, %v", when, left, err)
		}
	}
	if err := run("v1.0.0", true, ""); err != nil {
		t.Fatal(err)
	}
	check("a release", "a/v1.0.0", "b/v1.0.0")

	if _, err := git(".", "tag", "b/v1.0.1"); err != nil {
		t.Fatal(err)
	}
	if err := run("v1.0.1", true, ""); err == nil || !strings.HasSuffix(err.Error(), ":\nb/v1.0.1") {
		t.Errorf("a tag that is there: %v", err)
	}
	check("a tag that is there", "a/v1.0.0", "b/v1.0.0", "b/v1.0.1")

	// A name that git cannot give, since a tag is the beginning of it.
	if _, err := git(".", "tag", "-d", "b/v1.0.0", "b/v1.0.1"); err != nil {
		t.Fatal(err)
	}
	if _, err := git(".", "tag", "b"); err != nil {
		t.Fatal(err)
	}
	if err := run("v1.0.2", true, ""); err == nil {
		t.Error("no error")
	}
	check("a tag that git refuses", "a/v1.0.0", "b")

	// The worktree cannot be made.
	if err := os.RemoveAll(".git/worktrees"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(".git/worktrees", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run("v1.0.3", true, ""); err == nil {
		t.Error("no error")
	}
	check("no worktree", "a/v1.0.0", "b")
}
