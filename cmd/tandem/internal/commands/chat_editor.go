package commands

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/term"
)

// editor reads from somebody who types at a terminal: lines can be edited, the arrow
// keys bring back earlier ones, and several that are pasted are one text. It keeps
// the last hundred lines, in memory only. The terminal is raw while a line is
// read, so that a Ctrl-C at other times is a signal.
type editor struct {
	in       *os.File
	keys     *keystrokes
	terminal *term.Terminal

	mu      sync.Mutex
	before  *term.State // of the terminal, while it is raw
	stopped bool
}

// newEditor returns nil if the streams are no terminal that an editor can write to.
func newEditor(in io.Reader, out io.Writer, environ []string) *editor {
	from, is := in.(*os.File)
	if !is || !isTerminal(in) || !isTerminal(out) || slices.Contains(environ, dumb) {
		return nil
	}
	k := &keystrokes{from: from}
	t := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{k, out}, "")
	t.History = nonEmptyHistory{t.History}
	return &editor{in: from, keys: k, terminal: t}
}

// nonEmptyHistory is a history without empty lines.
type nonEmptyHistory struct{ term.History }

func (h nonEmptyHistory) Add(entry string) {
	if entry != "" {
		h.History.Add(entry)
	}
}

// next starts the goroutine that reads one text. Nothing ends a read from a terminal
// but the end of the process: it outlives the command by no more than that.
func (e *editor) next(prompt string) <-chan line {
	read := make(chan line, 1)
	go func() {
		text, err := e.read(prompt)
		read <- line{text, err}
	}()
	return read
}

func (e *editor) read(prompt string) (string, error) {
	if err := e.raw(prompt); err != nil {
		return "", err
	}
	defer e.restore()
	var text strings.Builder
	for {
		next, err := e.terminal.ReadLine()
		text.WriteString(next)
		switch {
		case text.Len() > maxPromptBytes:
			return "", fmt.Errorf("the text has more than %d bytes: shorten it", maxPromptBytes)
		case e.keys.interrupted:
			return "", errInterrupted
		case !errors.Is(err, term.ErrPasteIndicator):
			return text.String(), err
		}
		text.WriteByte('\n')
	}
}

func (e *editor) raw(prompt string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return io.EOF
	}
	before, err := term.MakeRaw(int(e.in.Fd()))
	if err != nil {
		return fmt.Errorf("take the terminal key by key: %w", err)
	}
	e.before = before
	if width, height := terminalSize(e.in); width > 0 {
		_ = e.terminal.SetSize(width, height)
	}
	e.keys.untouched, e.keys.interrupted = true, false
	e.terminal.SetPrompt(prompt)
	e.terminal.SetBracketedPasteMode(true)
	return nil
}

// restore leaves the terminal as it was.
func (e *editor) restore() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.before == nil {
		return
	}
	e.terminal.SetBracketedPasteMode(false)
	_ = term.Restore(int(e.in.Fd()), e.before)
	e.before = nil
}

func (e *editor) stop() {
	e.mu.Lock()
	e.stopped = true
	e.mu.Unlock()
	e.restore()
}

const ctrlC = 0x03

// keystrokes are what is typed, but for Ctrl-C, which ends the input of a
// term.Terminal: it empties a line where something was typed, and at an empty one it
// ends the line.
type keystrokes struct {
	from        io.Reader
	pending     []byte
	untouched   bool // nothing was typed since the line was empty
	interrupted bool // there was a Ctrl-C at such a line
}

func (k *keystrokes) Read(p []byte) (int, error) {
	if len(k.pending) == 0 {
		typed := make([]byte, 256)
		n, err := k.from.Read(typed)
		if n == 0 {
			return 0, err
		}
		k.pending = typed[:n]
	}
	i := bytes.IndexByte(k.pending, ctrlC)
	switch {
	case i == 0 && k.untouched:
		k.interrupted = true
		k.pending[0] = '\r'
		return k.take(p, 1), nil
	case i == 0:
		const end, erase = 0x05, 0x15 // Ctrl-E, Ctrl-U
		k.untouched = true
		k.pending = append([]byte{end, erase}, k.pending[1:]...)
		return k.take(p, 2), nil
	case i < 0:
		i = len(k.pending)
	}
	k.untouched = false
	return k.take(p, i), nil
}

func (k *keystrokes) take(p []byte, n int) int {
	n = copy(p, k.pending[:n])
	k.pending = k.pending[n:]
	return n
}
