package calibrate

import (
	"bufio"
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/loadtest/processor"
)

// Processes says how to start the two processes of a measurement. Each argument list must
// lead to a call of Serve or Load on standard input and output.
type Processes struct {
	// Binary is the program.
	Binary string
	// Server are the arguments of the fake server, Load those of the generator, given the
	// fake server's address.
	Server func(Plan) []string
	Load   func(p Plan, address string) []string
}

// childTimeout is how long a process may take beyond the plan's time.
const childTimeout = 30 * time.Second

// Measure runs a fake server and a generator, each on its own core if there are two, and
// compares their reports. It returns when both have ended.
func Measure(ctx context.Context, p Plan, processes Processes) (*Result, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*p.length()+p.Duration+childTimeout)
	defer cancel()
	var clientCore, serverCore []int // any
	if all := processor.Cores(); len(all) > 1 {
		clientCore, serverCore = all[:1], all[1:2]
	}

	server := exec.CommandContext(ctx, processes.Binary, processes.Server(p)...)
	var said bytes.Buffer
	server.Stderr = &said
	stdin, err := server.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := server.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := processor.On(serverCore, server.Start); err != nil {
		return nil, fmt.Errorf("start the fake server: %w", err)
	}
	out := bufio.NewReader(stdout)
	result, err := measure(ctx, p, processes, clientCore, out, stdin)
	if err != nil {
		_ = stdin.Close() // ends the fake server
		_, _ = io.Copy(io.Discard, out)
	}
	if waited := server.Wait(); waited != nil && err == nil {
		err = fmt.Errorf("the fake server failed: %w: %s", waited, strings.TrimSpace(said.String()))
	}
	if err != nil {
		return nil, errors.Join(ctx.Err(), err)
	}
	result.Pinned = clientCore != nil
	return result, nil
}

// measure runs the generator, stops the fake server, and joins their reports.
func measure(ctx context.Context, p Plan, processes Processes, cores []int, out *bufio.Reader, stdin io.Closer) (*Result, error) {
	address, err := out.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("the fake server did not say where it listens: %w", err)
	}
	client := exec.CommandContext(ctx, processes.Binary, processes.Load(p, strings.TrimSpace(address))...)
	var said, report bytes.Buffer
	client.Stdout, client.Stderr = &report, &said
	if err := processor.On(cores, client.Start); err != nil {
		return nil, fmt.Errorf("start the generator: %w", err)
	}
	if err := client.Wait(); err != nil {
		return nil, fmt.Errorf("the generator failed: %w: %s", err, strings.TrimSpace(said.String()))
	}
	var saw seen
	if err := gob.NewDecoder(&report).Decode(&saw); err != nil {
		return nil, fmt.Errorf("read what the generator saw: %w", err)
	}
	if err := stdin.Close(); err != nil {
		return nil, err
	}
	var did served
	if err := gob.NewDecoder(out).Decode(&did); err != nil {
		return nil, fmt.Errorf("read what the fake server sent: %w", err)
	}
	return join(p, did, saw)
}
