package embedded_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/embedded"
)

// What the system refuses is not the fault of the data: moving them away helps nobody.
func TestWhatTheSystemRefuses(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("open db: %w", syscall.EMFILE), "raise the limit, such as by 'ulimit -n 65536'"},
		{errors.New("file descriptor limit of etcd process is too low; please set higher"), "raise the limit, such as by 'ulimit -n 65536'"},
		{fmt.Errorf("open db: %w", syscall.ENFILE), "end other programs"},
		{fmt.Errorf("create WAL: %w", syscall.ENOSPC), "free some, etcd takes at least 200 MB"},
		{errors.New("failed to create WAL: no space left on device"), "free some"},
		{fmt.Errorf("create WAL: %w", syscall.EDQUOT), "free some"},
		{fmt.Errorf("mkdir: %w", syscall.EACCES), "let this user write there"},
		{fmt.Errorf("mkdir: %w", syscall.EROFS), "let this user write there"},
		{fmt.Errorf("listen: %w", syscall.EADDRINUSE), "stop the process that listens there"},
		{errors.New("the database has no pages"), "move that folder away, or choose another data directory"},
	} {
		got := embedded.ExplainData("/data", "/data/etcd", c.err).Error()
		if !strings.Contains(got, c.want) || strings.Contains(got, "\n") {
			t.Errorf("%v: %q lacks %q", c.err, got, c.want)
		}
		if strings.Contains(got, "move that folder") != strings.Contains(c.want, "move that folder") {
			t.Errorf("%v: %q has the data moved away", c.err, got)
		}
	}
}

// A folder that cannot be used says so, and what to do.
func TestFoldersForData(t *testing.T) {
	dir := t.TempDir()
	write(t, nil, dir, "file")
	first, err := embedded.StartEtcd(t.Context(), embedded.EtcdConfig{DataDir: filepath.Join(dir, "used")})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	for folder, want := range map[string]string{
		"used": "is in use: stop the process that uses it, or choose another",
		"file": "cannot be its data directory (mkdir " + filepath.Join(dir, "file") + ": not a directory): choose another",
	} {
		folder = filepath.Join(dir, folder)
		second, err := embedded.StartEtcd(t.Context(), embedded.EtcdConfig{DataDir: folder})
		if err == nil {
			second.Close()
		}
		if err == nil || !strings.Contains(err.Error(), folder) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: error %v, want the end %q", folder, err, want)
		}
	}
}

// TestFewFiles starts etcd in a process that may open few.
func TestFewFiles(t *testing.T) {
	const inside = "FEW_FILES_DATA"
	if dir := os.Getenv(inside); dir != "" {
		server, err := embedded.StartEtcd(t.Context(), embedded.EtcdConfig{DataDir: dir})
		if err == nil {
			server.Close()
		}
		fmt.Println("error:", err)
		return
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `ulimit -n 64 && exec "$0" -test.run='^TestFewFiles$'`, os.Args[0])
	cmd.Env = append(os.Environ(), inside+"="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if text := string(out); err != nil || !strings.Contains(text, "error: start etcd: this process may not open enough files") || !strings.Contains(text, "ulimit -n") {
		t.Errorf("%v: %s", err, text)
	}
}
