package processes

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-serving/tandem/loadtest/processor"
)

// process is one part of a mesh.
type process struct {
	name  string
	cmd   *exec.Cmd
	ready chan struct{} // closed when it printed "ready"
	done  chan struct{} // closed when it has exited
	err   error         // of its exit; valid once done is closed

	mu     sync.Mutex
	values map[string]string // what it printed: "grpc      127.0.0.1:7070"
	stderr bytes.Buffer
}

// maxSaid bounds what is kept of a process's standard error.
const maxSaid = 16 << 10

// launch starts a part on cores; nil: all. Its environment is ours without the
// variables that configure a mesh: those are meant for another one.
func launch(binary, name string, arguments []string, cores []int) (*process, error) {
	p := &process{
		name: name, cmd: exec.Command(binary, arguments...), values: map[string]string{},
		ready: make(chan struct{}), done: make(chan struct{}),
	}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "TANDEM_") {
			p.cmd.Env = append(p.cmd.Env, variable)
		}
	}
	// A Ctrl-C in the terminal is for the one that measures, who then stops the rest.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Stderr = saying{p}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := processor.On(cores, p.cmd.Start); err != nil {
		return nil, err
	}
	go func() {
		p.read(stdout)
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// saying keeps the beginning of what a process says on standard error.
type saying struct{ p *process }

func (s saying) Write(b []byte) (int, error) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if left := maxSaid - s.p.stderr.Len(); left > 0 {
		s.p.stderr.Write(b[:min(len(b), left)])
	}
	return len(b), nil
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if text := strings.TrimSpace(p.stderr.String()); text != "" {
		return text
	}
	return "it printed nothing"
}

func (p *process) read(stdout io.Reader) {
	lines := bufio.NewScanner(stdout)
	ready := false
	for lines.Scan() {
		name, value, found := strings.Cut(lines.Text(), " ")
		if found {
			p.mu.Lock()
			p.values[name] = strings.TrimSpace(value)
			p.mu.Unlock()
		}
		if lines.Text() == "ready" && !ready {
			ready = true
			close(p.ready)
		}
	}
}

func (p *process) value(name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.values[name]
}

func (p *process) waitReady(ctx context.Context) error {
	select {
	case <-p.ready:
		return nil
	case <-p.done:
		return fmt.Errorf("%s ended before it was ready: %s", p.name, p.said())
	case <-ctx.Done():
		return fmt.Errorf("%s was not ready in time: %w: %s", p.name, ctx.Err(), p.said())
	}
}

// stop asks a process to end, and ends it after the timeout.
func (p *process) stop(timeout time.Duration) error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		_ = p.cmd.Process.Kill() // gone already: as wanted
		<-p.done
	}
	return nil
}
