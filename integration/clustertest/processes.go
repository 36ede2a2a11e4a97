package clustertest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Binaries are the programs that a cluster of processes is made of.
type Binaries struct{ Tandem, Etcd, NATS string }

// Build builds tandem, and the servers that it has as libraries, unless those were built
// before (`make servers`): once for all tests, which RemoveBuilt ends.
func Build(t testing.TB) Binaries {
	t.Helper()
	built.once.Do(func() { built.binaries, built.err = build() })
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.binaries
}

// RemoveBuilt removes what Build has built, after the last test.
func RemoveBuilt() error { return os.RemoveAll(built.dir) }

var built struct {
	once     sync.Once
	dir      string // of this process; empty: nothing was built
	binaries Binaries
	err      error
}

func build() (b Binaries, err error) {
	root, err := filepath.Abs("..")
	if err != nil {
		return b, err
	}
	if built.dir, err = os.MkdirTemp("", "tandem-binaries-"); err != nil {
		return b, err
	}
	b.Tandem = filepath.Join(built.dir, "tandem")
	if err := goBuild(root, b.Tandem, "./cmd/tandem"); err != nil {
		return b, err
	}
	tool := func(name, pkg string) (string, error) {
		if path := filepath.Join(root, ".bin", name); isFile(path) {
			return path, nil
		}
		path := filepath.Join(built.dir, name)
		return path, goBuild(root, path, pkg)
	}
	if b.Etcd, err = tool("etcd", "go.etcd.io/etcd/server/v3"); err != nil {
		return b, err
	}
	b.NATS, err = tool("nats-server", "github.com/nats-io/nats-server/v2")
	return b, err
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func goBuild(root, path, pkg string) error {
	cmd := exec.Command("go", "build", "-o", path, pkg)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// Process is a running program.
type Process struct {
	// Name is for messages.
	Name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has exited
	err  error         // of its exit

	mu     sync.Mutex
	lines  []string
	stderr bytes.Buffer
	serves chan struct{} // closed when it printed that it serves
	ready  chan struct{} // closed when it printed "ready"
}

// Environ is the environment of the tests without what configures Tandem and clients of OpenAI's API:
// that is meant for other meshes.
func Environ() []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "TANDEM_") || strings.HasPrefix(variable, "OPENAI_")
	})
}

// Launch starts a program for the rest of the test.
func Launch(t testing.TB, name, path string, args ...string) *Process {
	t.Helper()
	p := &Process{Name: name, cmd: exec.Command(path, args...), done: make(chan struct{}), serves: make(chan struct{}), ready: make(chan struct{})}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = &lockedWriter{p: p}
	// State of the user's own meshes is left alone. Meshes are tested beside each other, so that no
	// router may take the usual port for operators.
	p.cmd.Env = append(Environ(), "TANDEM_LOG_LEVEL=warn", "TANDEM_CONTROL=127.0.0.1:0", "XDG_STATE_HOME="+t.TempDir())
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		p.read(stdout)
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s said:\n%s", name, p.Stderr())
		}
	})
	return p
}

type lockedWriter struct{ p *Process }

func (w *lockedWriter) Write(b []byte) (int, error) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return w.p.stderr.Write(b)
}

func (p *Process) read(stdout io.Reader) {
	serves := sync.OnceFunc(func() { close(p.serves) })
	scanner := bufio.NewScanner(stdout)
	for scanner.Scan() {
		p.mu.Lock()
		p.lines = append(p.lines, scanner.Text())
		p.mu.Unlock()
		switch {
		case scanner.Text() == "ready":
			serves()
			close(p.ready)
		case strings.HasPrefix(scanner.Text(), "waiting "):
			serves()
		}
	}
}

// Stderr is what the program wrote there so far.
func (p *Process) Stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.String()
}

// AwaitServing waits until the program printed that it serves: "ready", or what it waits for, as a router
// does that was started before its workers.
func (p *Process) AwaitServing(t testing.TB) *Process {
	t.Helper()
	p.await(t, p.serves)
	return p
}

// AwaitReady waits until the program printed "ready": a router once its workers could serve a request.
func (p *Process) AwaitReady(t testing.TB) {
	t.Helper()
	p.await(t, p.ready)
}

func (p *Process) await(t testing.TB, printed <-chan struct{}) {
	t.Helper()
	select {
	case <-printed:
	case <-p.done:
		t.Fatalf("%s exited before it was ready: %v\n%s", p.Name, p.err, p.Stderr())
	case <-time.After(Timeout):
		t.Fatalf("%s is not ready after %v\n%s", p.Name, Timeout, p.Stderr())
	}
}

// Field is what the program printed behind a name, such as "grpc".
func (p *Process) Field(t testing.TB, name string) string {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range p.lines {
		if value, found := strings.CutPrefix(line, name+" "); found {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("%s did not print %q", p.Name, name)
	return ""
}

// Client is a client of the router that the program runs, once it is ready.
func (p *Process) Client(t testing.TB) *Client {
	t.Helper()
	p.AwaitServing(t)
	return Dial(t, p.Field(t, "grpc"), p.Field(t, "control"))
}

// Kill ends the program with SIGKILL and waits.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have exited
	<-p.done
}

// Terminate asks the program to end with SIGTERM, waits, and returns how it
// exited.
func (p *Process) Terminate(t testing.TB) error {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.Exit(t)
}

// Exit waits until the program ends, and returns how it exited.
func (p *Process) Exit(t testing.TB) error {
	t.Helper()
	select {
	case <-p.done:
		return p.err
	case <-time.After(Timeout):
		t.Fatalf("%s did not end within %v\n%s", p.Name, Timeout, p.Stderr())
		return nil
	}
}

// given are the ports that FreePort gave away.
var given sync.Map

// FreeAddress is a loopback address that nobody listens on.
func FreeAddress(t testing.TB) string {
	t.Helper()
	return loopback(FreePort(t))
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// FreePort is a port of 127.0.0.1 that nobody listens on. It is below the kernel's ephemeral
// ports, so nobody gets it meanwhile by chance.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := 16<<10 + rand.IntN(16<<10)
		if _, before := given.LoadOrStore(port, true); before {
			continue
		}
		if listener, err := net.Listen("tcp", loopback(port)); err == nil {
			_ = listener.Close()
			return port
		}
	}
	t.Fatal("no port of 1000 is free")
	return 0
}

// LaunchEtcd starts an etcd server and waits until it takes connections.
func LaunchEtcd(t testing.TB, b Binaries) (endpoint string) {
	t.Helper()
	client := FreeAddress(t)
	p := Launch(t, "etcd", b.Etcd, EtcdArgs(t, client)...)
	AwaitListening(t, p, client)
	return "http://" + client
}

// EtcdArgs are the arguments of an etcd server whose clients come to an address.
func EtcdArgs(t testing.TB, client string) []string {
	t.Helper()
	client, peer := "http://"+client, "http://"+FreeAddress(t)
	return []string{
		"--name", "e", "--data-dir", t.TempDir(), "--log-level", "error", "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "e=" + peer,
	}
}

// LaunchNATS starts a NATS server and waits until it takes connections.
func LaunchNATS(t testing.TB, b Binaries) (url string) {
	t.Helper()
	address := FreeAddress(t)
	p := Launch(t, "nats-server", b.NATS, NATSArgs(address)...)
	AwaitListening(t, p, address)
	return "nats://" + address
}

// NATSArgs are the arguments of a NATS server whose clients come to an address.
func NATSArgs(client string) []string {
	host, port, _ := net.SplitHostPort(client)
	return []string{"-a", host, "-p", port}
}

// AwaitListening waits until a program takes connections.
func AwaitListening(t testing.TB, p *Process, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-tick.C:
		case <-p.done:
			t.Fatalf("%s exited: %v\n%s", p.Name, p.err, p.Stderr())
		case <-ctx.Done():
			t.Fatalf("%s does not listen on %s: %v", p.Name, address, errors.Join(err, ctx.Err()))
		}
	}
}

// Servers are the arguments that point a part at its servers.
func Servers(etcd, nats string) []string {
	return []string{fmt.Sprintf("--etcd=%s", etcd), fmt.Sprintf("--nats=%s", nats)}
}
