package commands_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/eventlog"
	"github.com/tandem-serving/tandem/pkg/eventlog/routerlog"
	"github.com/tandem-serving/tandem/pkg/replay"
	"github.com/tandem-serving/tandem/pkg/routing"
)

type zero struct{}

func (zero) IntN(int) int { return 0 }

// recorded is a log in which a router did these actions on a tick, when there was nothing to do.
func recorded(t *testing.T, actions ...routing.Action) string {
	t.Helper()
	codecs, err := replay.NewCodecs()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "router.events")
	log, err := eventlog.Create(path, eventlog.Options{Codecs: codecs, Build: "test", Limit: 1 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	_, recorder := routerlog.NewRouting(log, routing.Config{WorkerKeep: time.Minute}, zero{})
	recorder.Event(log.Now(), routing.Tick{})
	recorder.Actions(actions)
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// All that is wrong with several logs is said, and how many differ.
func TestReplaySaysAllThatIsWrong(t *testing.T) {
	same, differs := recorded(t), recorded(t, routing.Refuse{ID: "r1"})
	for _, c := range []struct {
		paths []string
		want  []string // nil: nothing is wrong
	}{
		{[]string{same, same}, nil},
		{[]string{same, differs}, []string{"1 of 2 logs differ"}},
		{[]string{"/nowhere.events", differs, "/nowhere.either", same}, []string{"/nowhere.events: no such file", "/nowhere.either: no such file", "1 of 4 logs differ"}},
	} {
		got := run(t.Context(), "", nil, append([]string{"replay"}, c.paths...)...)
		if c.want == nil && got.status != 0 {
			t.Errorf("%v: %+v", c.paths, got)
		}
		for _, want := range c.want {
			checkFailure(t, got, 1, want)
		}
	}
}

// A policy that there is not is a mistake in the flag that was given, seen before the log is read.
func TestReplayOfNoPolicy(t *testing.T) {
	for _, flag := range []string{"--policy", "--router-policy"} {
		checkFailure(t, run(t.Context(), "", nil, "replay", "/nowhere.events", flag+"=bogus"), 2, "tandem: "+flag+`: there is no policy "bogus"`)
	}
}

func TestReplayInterrupted(t *testing.T) {
	log := recorded(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{{"replay", log}, {"replay", log, "--policy=round-robin"}} {
		got := run(ctx, "", nil, args...)
		checkFailure(t, got, 130, "interrupted before all logs were read")
		if strings.Contains(got.stdout, "differs") {
			t.Errorf("%v prints %q", args, got.stdout)
		}
	}
}
