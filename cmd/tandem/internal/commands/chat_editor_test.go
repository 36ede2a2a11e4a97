//go:build linux

package commands_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/commands"
)

// typist is at a terminal at which a command runs.
type typist struct {
	t      *testing.T
	screen *os.File // the terminal's other side
	seen   string
}

// openTerminal opens a terminal and its other side, which the caller closes.
func openTerminal(t *testing.T) (screen, terminal *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal: %v", err)
	}
	number, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal: %v", err)
	}
	return screen, terminal
}

// A terminal that knows no escape codes gets none.
func TestDumbTerminal(t *testing.T) {
	screen, terminal := openTerminal(t)
	defer screen.Close()
	defer terminal.Close()
	for value, want := range map[string]bool{"xterm": true, "dumb": false} {
		t.Setenv("TERM", value)
		if got := commands.WritesOver(terminal); got != want {
			t.Errorf("TERM=%s: %t, want %t", value, got, want)
		}
	}
}

// atTerminal runs a command whose standard input and error are a terminal. status has
// its exit status; answers is standard output.
func atTerminal(ctx context.Context, t *testing.T, args ...string) (_ *typist, status <-chan int, answers *strings.Builder) {
	t.Helper()
	screen, terminal := openTerminal(t)
	before, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	answers = new(strings.Builder)
	ended := make(chan int, 1)
	interrupts := make(chan os.Signal)
	go func() {
		ended <- commands.Run(ctx, commands.Process{Args: args, Stdin: terminal, Stdout: answers, Stderr: terminal, Interrupts: interrupts})
	}()
	t.Cleanup(func() {
		if after, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS); err != nil || *after != *before {
			t.Errorf("the terminal was left as %+v (%v), not %+v", after, err, before)
		}
		_ = terminal.Close()
		_ = screen.Close()
	})
	return &typist{t: t, screen: screen}, ended, answers
}

// awaits reads until the screen says text, and forgets what came before it.
func (y *typist) awaits(text string) (before string) {
	y.t.Helper()
	buffer := make([]byte, 4096)
	for {
		if before, rest, found := strings.Cut(y.seen, text); found {
			y.seen = rest
			return before
		}
		n, err := y.screen.Read(buffer)
		if err != nil {
			y.t.Fatalf("waits for %q on the screen, which says %q: %v", text, y.seen, err)
		}
		y.seen += string(buffer[:n])
	}
}

func (y *typist) types(keys string) {
	y.t.Helper()
	if _, err := y.screen.WriteString(keys); err != nil {
		y.t.Fatal(err)
	}
}

// prompt of a chat, after what asks the terminal to say what is pasted.
const prompt = "\x1b[?2004h> "

func TestChatAtATerminal(t *testing.T) {
	const up, left, ctrlC, ctrlD = "\x1b[A", "\x1b[D", "\x03", "\x04"
	for name, c := range map[string]struct {
		keys, want string
		givenUp    int // texts
	}{
		"a line":                {"one\r", "one", 0},
		"a line that is edited": {"oe" + left + "n\r", "one", 0},
		"what was said before":  {up + "\r", "first", 0},
		"several pasted lines":  {"\x1b[200~one\n\ttwo\nthree\x1b[201~\r", "one\n\ttwo\nthree", 0},
		"a line given up":       {"nonsense" + left + ctrlC + "one\r", "one", 0},
		"a block":               {"\"\"\"one\rtwo\"\"\"\r", "one\ntwo", 0},
		"a block given up":      {"\"\"\"one\r" + ctrlC + "two\r", "two", 1},
		"other letters":         {"Zwölf\r", "Zwölf", 0},
	} {
		for leaving, key := range map[string]string{"Ctrl-C": ctrlC, "Ctrl-D": ctrlD, "exit": "exit\r"} {
			t.Run(name+", "+leaving, func(t *testing.T) {
				k := new(talker)
				router := &fakeRouter{generate: k.generate}
				y, status, answers := atTerminal(t.Context(), t, "chat", "--no-stats", "--addr", router.start(t))
				if greeting := y.awaits(prompt); !strings.Contains(greeting, "Say something to fake; /help lists commands") {
					t.Errorf("greets with %q", greeting)
				}
				y.types("first\r")
				y.awaits(prompt)
				y.types(c.keys)
				for range 1 + c.givenUp {
					y.awaits(prompt)
				}
				y.types(key)
				if key == ctrlC { // one that comes too late for an answer is no reason to leave
					if hint := y.awaits(prompt); !strings.Contains(hint, "once more") {
						t.Errorf("Ctrl-C at an empty line says %q", hint)
					}
					y.types(key)
				}
				if got := <-status; got != 0 {
					t.Errorf("exit status %d", got)
				}
				if want := "user: first | assistant: answer 1 | user: " + c.want; answers.String() != "answer 1\nanswer 2\n" || k.said(1) != want {
					t.Errorf("said %q, want %q; answered %q", k.said(1), want, answers.String())
				}
			})
		}
	}
}

// SIGTERM while somebody types leaves the terminal as it was.
func TestChatTerminated(t *testing.T) {
	router := &fakeRouter{generate: new(talker).generate}
	ctx, terminate := context.WithCancel(t.Context())
	y, status, _ := atTerminal(ctx, t, "chat", "--addr", router.start(t))
	y.awaits(prompt)
	y.types("half a li")
	y.awaits("half a li")
	terminate()
	if got := <-status; got != 130 {
		t.Errorf("exit status %d", got)
	}
	y.types("ne\n") // ends the read, which nothing else does
	y.awaits("tandem: cancelled")
}

// A router that is not there is said before anybody types.
func TestChatLooksForTheRouter(t *testing.T) {
	y, status, _ := atTerminal(t.Context(), t, "chat", "--addr", "127.0.0.1:1")
	if got := <-status; got != 1 {
		t.Errorf("exit status %d", got)
	}
	if before := y.awaits("cannot reach the router at 127.0.0.1:1: start it with 'tandem up'"); before != "tandem: " {
		t.Errorf("says %q first", before)
	}
}
