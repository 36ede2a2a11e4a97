package embedded_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tandem-serving/tandem/cmd/tandem/embedded"
)

// garbage is bytes that no program wrote.
func garbage(n int) []byte {
	bytes, source := make([]byte, n), rand.New(rand.NewPCG(1, 2))
	for i := range bytes {
		bytes[i] = byte(source.Uint32())
	}
	return bytes
}

func write(t *testing.T, data []byte, path ...string) {
	t.Helper()
	file := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// used makes a directory that an etcd has written to.
func used(t *testing.T, dir string) {
	t.Helper()
	server, err := embedded.StartEtcd(t.Context(), embedded.EtcdConfig{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
}

// each overwrites the files that match.
func each(t *testing.T, pattern string, change func(data []byte) []byte) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no file, error %v", pattern, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		write(t, change(data), file)
	}
}

// removable makes a folder that is removed although an etcd that could not start still prepares the
// next file of its log, which may come in between.
func removable(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "damaged")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 100 {
			if err = os.RemoveAll(dir); err == nil {
				return
			}
		}
		t.Errorf("remove the folder: %v", err)
	})
	return dir
}

// Data that etcd cannot read end its process; they must not end ours.
func TestDataOfNoEtcd(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(t *testing.T, dir string)
	}{
		{"a database of random bytes", func(t *testing.T, dir string) {
			used(t, dir)
			each(t, filepath.Join(dir, "etcd", "member", "snap", "db"), func([]byte) []byte { return garbage(64 << 10) })
		}},
		{"a log of random bytes", func(t *testing.T, dir string) {
			used(t, dir)
			each(t, filepath.Join(dir, "etcd", "member", "wal", "*.wal"), func([]byte) []byte { return garbage(64 << 10) })
		}},
		{"random bytes alone", func(t *testing.T, dir string) {
			write(t, garbage(64<<10), dir, "etcd/member/snap/db")
			write(t, garbage(64<<10), dir, "etcd/member/wal/0000000000000000-0000000000000000.wal")
		}},
		{"a database with the end cut off", func(t *testing.T, dir string) {
			used(t, dir)
			each(t, filepath.Join(dir, "etcd", "member", "snap", "db"), func(data []byte) []byte { return data[:8<<10] })
		}},
		{"a database with damaged pages", func(t *testing.T, dir string) {
			used(t, dir)
			each(t, filepath.Join(dir, "etcd", "member", "snap", "db"), func(data []byte) []byte {
				return append(data[:8<<10:8<<10], garbage(len(data)-8<<10)...)
			})
		}},
		{"an empty log", func(t *testing.T, dir string) {
			used(t, dir)
			each(t, filepath.Join(dir, "etcd", "member", "wal", "*.wal"), func([]byte) []byte { return nil })
		}},
		{"member is a file", func(t *testing.T, dir string) { write(t, nil, dir, "etcd/member") }},
		{"etcd is a file", func(t *testing.T, dir string) { write(t, nil, dir, "etcd") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := removable(t)
			c.make(t, dir)
			server, err := embedded.StartEtcd(t.Context(), embedded.EtcdConfig{DataDir: dir})
			if err == nil {
				server.Close()
				t.Fatal("it started")
			}
			text := err.Error()
			for _, want := range []string{filepath.Join(dir, "etcd"), "move that folder away, or choose another data directory"} {
				if !strings.Contains(text, want) {
					t.Errorf("%q lacks %q", text, want)
				}
			}
			if strings.ContainsAny(text, "\n\r\x00") || strings.Contains(text, "goroutine") || len(text) > 600 {
				t.Errorf("not one line for people: %q", text)
			}
			t.Log(text)
		})
	}
}

// stuckServer does not close before its channel is closed.
type stuckServer chan struct{}

func (s stuckServer) Close() { <-s }

// A server that fails may never close, whether or not Run is there to see it.
func TestCloseAfterFailure(t *testing.T) {
	broken := errors.New("the disk is broken")
	for _, c := range []struct {
		name       string
		early, run bool // it fails before it is closed, and Run sees it
	}{
		{"before Run", true, false},
		{"during Run", true, true},
		{"during Close", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := make(stuckServer)
				defer close(server)
				e, fail := embedded.NewEtcd(server)
				if c.early {
					fail(broken)
				}
				if c.run {
					if err := e.Run(t.Context()); !errors.Is(err, broken) {
						t.Errorf("it failed by %v", err)
					}
				}
				closed := make(chan struct{})
				go func() { defer close(closed); e.Close() }()
				synctest.Wait()
				if !c.early {
					fail(broken)
				}
				synctest.Wait()
				select {
				case <-closed:
				default:
					t.Error("it does not close")
				}
			})
		})
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	server, err := embedded.StartEtcd(t.Context(), embedded.EtcdConfig{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := server.Run(ctx); err != nil {
		t.Error(err)
	}
}

// Who reaches a port for peers may propose any write to etcd, another one's API key among them,
// without a certificate: there is no such port.
func TestEtcdHasNoPortForPeers(t *testing.T) {
	dir := t.TempDir()
	for range 2 { // the second start has the first one's data
		server, err := embedded.StartEtcd(t.Context(), embedded.EtcdConfig{DataDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		ports := server.PeerPorts()
		server.Close()
		if ports != 0 {
			t.Fatalf("%d ports", ports)
		}
	}
}

// Web pages can send what etcd's gateway from JSON takes for a write: there is none.
func TestEtcdHasNoGateway(t *testing.T) {
	server, err := embedded.StartEtcd(t.Context(), embedded.EtcdConfig{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for _, path := range []string{"/v3/kv/put", "/v3/kv/range"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.Endpoint()+path, strings.NewReader(`{"key":"YQ==","value":"Yg=="}`))
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if err := response.Body.Close(); err != nil {
			t.Error(err)
		}
		if response.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, response.Status)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
