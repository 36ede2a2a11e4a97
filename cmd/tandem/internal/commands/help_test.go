package commands_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/commands"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// listed is a line of a help that begins with a flag.
var listed = regexp.MustCompile(`(?m)^(?:      |  -h, )--([\w-]+)`)

// flagsIn are the flags that a help lists.
func flagsIn(help string) (names []string) {
	for _, match := range listed.FindAllStringSubmatch(help, -1) {
		names = append(names, match[1])
	}
	return names
}

// TestOutputThatCannotBeWritten: the status says so.
func TestOutputThatCannotBeWritten(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	dir := t.TempDir()
	file, profile := filepath.Join(dir, "f.yaml"), filepath.Join(dir, "p.json")
	for path, text := range map[string]string{file: "decode: 2\n", profile: distServeProfile} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	control := (&fakeRouter{budget: overBudget(), explain: func(r *controlv1.ExplainRequest) (*controlv1.ExplainResponse, error) {
		return &controlv1.ExplainResponse{RequestId: r.GetRequestId(), Status: "OK", Arrived: timestamppb.New(time.Unix(0, 0))}, nil
	}}).start(t)
	for _, args := range [][]string{
		{"--help"}, {"help", "up"}, {"up", "--help-all"}, {"config", "validate", file}, {"replay", recorded(t)},
		{"explain", "r1", "--control", control}, {"budget", "--control", control},
		{"profile", "--from-distserve", profile, "--entry", "opt"},
	} {
		var errs strings.Builder
		if status := commands.Run(t.Context(), commands.Process{Args: args, Stdout: full, Stderr: &errs}); status != 1 || !strings.Contains(errs.String(), "no space left") {
			t.Errorf("%v: status %d, %q", args, status, errs.String())
		}
	}
}

// TestHelpIsShort: a dozen flags a command, all of them for those who ask.
func TestHelpIsShort(t *testing.T) {
	long := 0
	walk(commands.NewRoot(nil), func(cmd *cobra.Command) {
		args := strings.Fields(cmd.CommandPath())[1:]
		short, all := run(t.Context(), "", nil, append(args, "--help")...), run(t.Context(), "", nil, append(args, "--help-all")...)
		if all.status != 0 || all.stderr != "" {
			t.Errorf("%v --help-all: %+v", args, all)
		}
		about, _, _ := strings.Cut(short.stdout, "\nUsage:\n")
		for line := range strings.Lines(about) {
			if utf8.RuneCountInString(line) > 81 && !strings.HasPrefix(line, " ") {
				t.Errorf("%v --help: a terminal of 80 columns breaks %q", args, line)
			}
		}
		shown := flagsIn(short.stdout)
		if len(shown) > commands.MostFlags {
			t.Errorf("%v --help lists %d flags: name the main ones in mainFlags", args, len(shown))
		}
		every := strings.Join(append(flagsIn(all.stdout), ""), " ")
		count := 0
		cmd.InitDefaultHelpFlag()
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden || f.Name == "help-all" {
				return
			}
			count++
			if strings.Count(" "+every, " "+f.Name+" ") != 1 {
				t.Errorf("%v --help-all does not list --%s once", args, f.Name)
			}
		})
		if strings.Contains(short.stdout, "--help-all") {
			long++
		} else if len(shown) != count {
			t.Errorf("%v --help lists %d of %d flags, and does not say where the others are", args, len(shown), count)
		}
	})
	if long < 5 {
		t.Errorf("only %d commands are cut short", long)
	}
}

func TestMainFlagsExist(t *testing.T) {
	for name, flags := range commands.MainFlags {
		cmd, rest, err := commands.NewRoot(nil).Find(strings.Fields(name))
		if err != nil || len(rest) > 0 {
			t.Errorf("there is no command %q", name)
			continue
		}
		for _, flag := range flags {
			if cmd.Flags().Lookup(flag) == nil {
				t.Errorf("%s has no flag --%s", name, flag)
			}
		}
	}
	for _, name := range []string{"up", "serve", "bench serve"} {
		_, others, _ := strings.Cut(run(t.Context(), "", nil, append(strings.Fields(name), "--help-all")...).stdout, "Other flags:")
		if names := flagsIn(others); len(names) == 0 || len(names) > 4 {
			t.Errorf("%s: these flags are under no heading: %v", name, names)
		}
	}
}

func TestGreeting(t *testing.T) {
	got := run(t.Context(), "", nil)
	if got.status != 0 || got.stderr != "" {
		t.Fatalf("%+v", got)
	}
	for _, want := range []string{"tandem up\n", "tandem chat\n", "tandem generate --prompt", "curl http://127.0.0.1:8080/v1/", "'tandem --help'"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("it lacks %q:\n%s", want, got.stdout)
		}
	}
	if lines := strings.Count(got.stdout, "\n"); lines > 20 {
		t.Errorf("it is %d lines long", lines)
	}
	var out strings.Builder
	commands.Run(t.Context(), commands.Process{Program: "/opt/tandem", Args: []string{"--help"}, Stdout: &out, Stderr: &out})
	help := out.String()
	for _, want := range []string{"help for tandem\n", "'/opt/tandem COMMAND --help'", "Run a mesh:", "Use it:", "Operate it:", "Measure:"} {
		if !strings.Contains(help, want) {
			t.Errorf("help lacks %q:\n%s", want, help)
		}
	}
}

// Commands begin everywhere with how the program was called.
func TestCommandsCanBeCopied(t *testing.T) {
	other := regexp.MustCompile(`(^|[\s'])tandem (up|serve|workers|generate|explain|drain|config|bench)\b.*`)
	for _, args := range [][]string{
		{"--help"}, {"drain", "--help"}, {"drain"}, {"serve", "--help-all"}, {"config", "print", "--help"}, {"policy", "set", "--help"},
		{"serve"}, {"help", "explain"}, {"no-such"}, {"budget", "--control=127.0.0.1:1"},
	} {
		var out strings.Builder
		commands.Run(t.Context(), commands.Process{Program: "./tandem", Args: args, Stdout: &out, Stderr: &out})
		if text := out.String(); !strings.Contains(text, "./tandem ") || other.MatchString(text) {
			t.Errorf("%v: it has %q:\n%s", args, other.FindString(text), text)
		}
	}
}
