package commands_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/commands"
)

// A simulation that is to estimate a capacity says so in plain words.
func TestSimulateProgress(t *testing.T) {
	var out strings.Builder
	p := commands.NewSimulateProgress(&out)
	p.Begin("estimating the capacity", 0)
	p.Begin("step 1 of 2, 4 requests/s", 0)
	if want := "estimating the capacity\nsimulating step 1 of 2, 4 requests/s\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

func TestProgress(t *testing.T) {
	for _, c := range []struct {
		name     string
		terminal bool
		took     time.Duration
		want     string
	}{
		{"a quick load elsewhere", false, 2 * time.Second, ""},
		{"a slow load elsewhere", false, 11 * time.Second, "packing the weights: 45%\npacking the weights: 91%\n"},
		{"an instant on a terminal", true, 0, ""},
		{"a second on a terminal", true, time.Second, "\r\x1b[Kpacking the weights: 100%\r\x1b[K"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var out strings.Builder
			report, finish := commands.NewProgress(&out, c.terminal)
			report("map", 0, 1)
			for done := time.Second; done <= c.took; done += time.Second {
				<-time.After(time.Second)
				report("pack", int64(done), int64(c.took))
			}
			finish()
			finish()
			if out.String() != c.want {
				t.Errorf("%s: %q, want %q", c.name, out.String(), c.want)
			}
		})
	}
}

func TestInvocation(t *testing.T) {
	for program, want := range map[string]string{
		"":                                "tandem",
		"tandem":                          "tandem",
		"./tandem":                        "./tandem",
		"/usr/bin/tandem":                 "/usr/bin/tandem",
		"/my programs/tandem":             `"/my programs/tandem"`,
		"/tmp/go-build12/b001/exe/tandem": "go run ./cmd/tandem",
		"/c/ab/" + strings.Repeat("0f", 32) + "-d/tandem": "go run ./cmd/tandem",
	} {
		if got := commands.Invocation(program); got != want {
			t.Errorf("%q is called as %q, want %q", program, got, want)
		}
	}
}
