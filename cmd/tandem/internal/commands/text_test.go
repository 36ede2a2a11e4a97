package commands_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/commands"
)

// What people are told to type is for a shell what it was.
func TestShellQuoted(t *testing.T) {
	texts := []string{
		"", "a b", "a\tb", "a\nb", `a\b`, "a`b", "a'b", `a"b`, "#a", "~", "~/a", "a[b]", "a{b,c}", "!!", "a$b", "$(a)", "a*?", "a;b&c|d", "a<b>c", "(a)", "^a", "-a", "ä",
	}
	var words []string
	for _, text := range texts {
		words = append(words, commands.ShellQuoted(text))
	}
	for _, shell := range []string{"sh", "bash"} {
		path, err := exec.LookPath(shell)
		if err != nil {
			continue
		}
		out, err := exec.CommandContext(t.Context(), path, "-c", `printf '%s\0' `+strings.Join(words, " ")).Output()
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Split(string(out), "\x00"); strings.Join(got[:len(got)-1], "|") != strings.Join(texts, "|") {
			t.Errorf("%s reads %q as %q", shell, words, got)
		}
	}
	for _, plain := range []string{"--slo=ttft:p99", "a@b%c_d+e=f:g,h./-", "/usr/bin/tandem", "12.5GB/s"} {
		if got := commands.ShellQuoted(plain); got != plain {
			t.Errorf("%q becomes %q", plain, got)
		}
	}
}
