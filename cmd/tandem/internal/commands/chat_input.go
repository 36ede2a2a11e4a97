package commands

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// Terminations are the signals, beside Ctrl-C, that ask a process to finish: SIGTERM,
// and SIGHUP of a terminal that is closed, unless whoever started it had that ignored,
// as nohup does.
func Terminations() []os.Signal {
	if signal.Ignored(syscall.SIGHUP) {
		return []os.Signal{syscall.SIGTERM}
	}
	return []os.Signal{syscall.SIGTERM, syscall.SIGHUP}
}

// interruptsOf is the Ctrl-C of a command that goes on after one, and the context
// that it runs in, which a Ctrl-C does not end. The caller calls stop.
func interruptsOf(ctx context.Context) (_ context.Context, interrupts <-chan os.Signal, stop func()) {
	if given := processOf(ctx).Interrupts; given != nil {
		return ctx, given, func() {}
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt)
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, Terminations()...)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-terminated:
			cancel()
		case <-running.Done():
		}
	}()
	return running, signals, func() {
		signal.Stop(signals)
		signal.Stop(terminated)
		cancel()
		<-ended
	}
}

// input is where a conversation comes from.
type input interface {
	// next asks for a line; the channel gives one, or is closed after the last.
	next(prompt string) <-chan line
	// stop ends it; nothing is asked for any more.
	stop()
}

// lines reads lines for as long as they are asked for.
type lines struct {
	read    chan line
	done    chan struct{}
	prompts io.Writer
}

type line struct {
	text string
	err  error // io.EOF: there are no more
}

// readLines starts the goroutine that reads. Nothing ends a read from a terminal
// but the end of the process: it outlives the command by no more than that.
func readLines(r io.Reader, prompts io.Writer) *lines {
	l := &lines{read: make(chan line), done: make(chan struct{}), prompts: prompts}
	go func() {
		defer close(l.read)
		scanner := bufio.NewScanner(r)
		scanner.Buffer(nil, maxPromptBytes)
		for {
			next := line{err: io.EOF}
			if scanner.Scan() {
				next = line{text: scanner.Text()}
			} else if err := scanner.Err(); err != nil {
				next.err = err
			}
			select {
			case l.read <- next:
			case <-l.done:
				return
			}
			if next.err != nil {
				return
			}
		}
	}()
	return l
}

func (l *lines) next(prompt string) <-chan line {
	_, _ = io.WriteString(l.prompts, prompt)
	return l.read
}

func (l *lines) stop() { close(l.done) }

// errUnclosed is a block whose end did not come.
var errUnclosed = errors.New(`the input ends inside a text that """ began: end it with """`)

// turn puts lines together to what is said at once: a backslash at the end of a
// line goes on, and """ begins and ends a block. more is asked for further lines.
// At the end of the input a line that would go on is all there is.
func turn(first string, more func() (string, error)) (string, error) {
	const fence = `"""`
	text := first
	if rest, fenced := strings.CutPrefix(text, fence); fenced {
		for {
			if body, closed := strings.CutSuffix(rest, fence); closed {
				return strings.TrimPrefix(body, "\n"), nil
			}
			next, err := more()
			if errors.Is(err, io.EOF) {
				return "", errUnclosed
			}
			if err != nil {
				return "", err
			}
			rest += "\n" + next
		}
	}
	for {
		body, goesOn := strings.CutSuffix(text, `\`)
		if !goesOn {
			return text, nil
		}
		next, err := more()
		if errors.Is(err, io.EOF) {
			return body, nil
		}
		if err != nil {
			return "", err
		}
		text = body + "\n" + next
	}
}
