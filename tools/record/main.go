// Command record makes a moving picture of a terminal: it types the lines of a script
// into a shell, and draws what they really print, when they print it, as one SVG.
//
//	go run . --script demo.sh --out ../../docs/images/demo.svg
//
// A script has a line of shell each, which is shown as typed and run in one bash. What
// begins with "# " is shown as a remark, and with "#! " run without being shown. "#until
// TEXT" waits until a line of output begins with TEXT, for at most a minute. A pause follows
// each line, but for one that leaves something running (its last word is an assignment of
// $!), and a longer one the last, before the picture begins again.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"time"
)

func main() {
	script := flag.String("script", "demo.sh", "file with the lines to type")
	out := flag.String("out", "demo.svg", "file to write the picture to")
	flag.Parse()
	if err := run(*script, *out); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func run(script, out string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	text, err := os.ReadFile(script)
	if err != nil {
		return err
	}
	chunks, err := Record(ctx, strings.Split(strings.TrimSpace(string(text)), "\n"))
	if err != nil {
		return err
	}
	return os.WriteFile(out, []byte(Draw(chunks)), 0o644)
}

// Chunk is text that appears at one moment; At counts from the beginning.
type Chunk struct {
	At   time.Duration
	Text string
	Kind Kind
}

// Kind says who wrote a chunk.
type Kind int

// What the shell printed, what was typed into it, and a remark.
const (
	Printed Kind = iota
	Typed
	Remark
)

const (
	patience = time.Minute           // for one line of a script
	keyTime  = 22 * time.Millisecond // between two keys
	// keysAtOnce appear together, which keeps the picture small.
	keysAtOnce = 3
	pause      = 1200 * time.Millisecond // after a line
	// done is printed by the shell behind each line, and never shown.
	done = "\x00done"
)

// Record runs the lines in one bash and says what appeared when. Its clock stands still
// while nothing is shown but a hidden line runs.
func Record(ctx context.Context, lines []string) ([]Chunk, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "--norc")
	input, err := shell.StdinPipe()
	if err != nil {
		return nil, err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	shell.Stdout, shell.Stderr = writer, writer
	if err := shell.Start(); err != nil {
		return nil, err
	}
	writer.Close()
	s := session{output: make(chan string, 1<<10), input: input}
	go s.read(ctx, reader)
	for _, line := range lines {
		if err := s.line(line); err != nil {
			return nil, fmt.Errorf("%s: %w", line, err)
		}
	}
	input.Close()
	return s.chunks, shell.Wait()
}

// session is one shell with what it has shown.
type session struct {
	input  io.Writer
	output chan string // closed at the end of the shell
	chunks []Chunk
	now    time.Duration
	// began is how many chunks there were when the last line was typed.
	began int
}

// read hands on what the shell prints, a line or a part of one at a time.
func (s *session) read(ctx context.Context, from io.Reader) {
	defer close(s.output)
	r := bufio.NewReader(from)
	for {
		b := make([]byte, 4096)
		n, err := r.Read(b)
		for _, part := range strings.SplitAfter(string(b[:n]), "\n") {
			if part == "" {
				continue
			}
			select {
			case s.output <- part:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (s *session) show(kind Kind, text string) {
	s.chunks = append(s.chunks, Chunk{At: s.now, Text: text, Kind: kind})
}

func (s *session) line(line string) error {
	switch {
	case line == "":
		return nil
	case strings.HasPrefix(line, "#until "):
		return s.until(strings.TrimPrefix(line, "#until "))
	case strings.HasPrefix(line, "#! "):
		now := s.now
		err := s.command(strings.TrimPrefix(line, "#! "), false)
		s.now = now
		return err
	case strings.HasPrefix(line, "#"):
		s.show(Remark, line+"\n")
		s.now += pause
		return nil
	}
	s.began = len(s.chunks)
	s.show(Typed, "$ ")
	for keys := []rune(line); len(keys) > 0; {
		n := min(keysAtOnce, len(keys))
		s.now += time.Duration(n) * keyTime
		s.show(Typed, string(keys[:n]))
		keys = keys[n:]
	}
	s.show(Typed, "\n")
	return s.command(line, true)
}

// command runs one line to its end and shows what appears meanwhile.
func (s *session) command(line string, shown bool) error {
	if _, err := fmt.Fprintf(s.input, "%s\nprintf '\\0done\\n'\n", line); err != nil {
		return err
	}
	if err := s.follow(shown, func(text string) bool { return strings.Contains(text, done) }); err != nil {
		return err
	}
	return s.rest(shown && !strings.HasSuffix(line, "=$!"))
}

// until waits for output that begins with text, if the last line has not printed it yet.
func (s *session) until(text string) error {
	found := func(c Chunk) bool { return c.Kind == Printed && strings.HasPrefix(c.Text, text) }
	if slices.ContainsFunc(s.chunks[s.began:], found) {
		return s.rest(true)
	}
	if err := s.follow(true, func(line string) bool { return strings.HasPrefix(line, text) }); err != nil {
		return err
	}
	return s.rest(true)
}

// rest lets a reader look, while the programs go on.
func (s *session) rest(shown bool) error {
	if !shown {
		return nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	began, from := time.Now(), s.now
	for {
		select {
		case text, more := <-s.output:
			if !more {
				return nil
			}
			s.now = from + time.Since(began)
			s.show(Printed, text)
		case <-timer.C:
			s.now = from + pause
			return nil
		}
	}
}

// follow shows what is printed until what enough accepts.
func (s *session) follow(shown bool, enough func(string) bool) error {
	began, from := time.Now(), s.now
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		select {
		case text, more := <-s.output:
			if !more {
				return fmt.Errorf("the shell ended")
			}
			s.now = from + time.Since(began)
			last := enough(text)
			if visible, _, _ := strings.Cut(text, done); shown && visible != "" {
				s.show(Printed, visible)
			}
			if last {
				return nil
			}
		case <-deadline.C:
			return fmt.Errorf("not done after %v", patience)
		}
	}
}
