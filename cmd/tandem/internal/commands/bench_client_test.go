package commands_test

import (
	"context"
	"testing"
)

func TestBenchClientMistakes(t *testing.T) {
	cases := []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--streams=0"}, 2, "0 streams: give 1 to 100000"},
		{[]string{"--duration=1ms"}, 2, "a duration of 1ms: give 1s to 1h"},
		{[]string{"--token-rate=0"}, 2, "--token-rate: 0 is not above 0"},
		{[]string{"--ttft=1ms", "--ttft-jitter=5ms"}, 2, "give a mean from 0 and a jitter from 0 to the mean"},
		{[]string{"--streams=100000", "--duration=1h"}, 2, "give fewer streams or a shorter duration"},
		{[]string{"extra"}, 2, `takes no argument "extra"`},
		{[]string{"load", "127.0.0.1:1"}, 2, "needs the PLAN"},
		{[]string{"server", "{"}, 1, "only 'tandem bench client' runs this command"},
	}
	for _, c := range cases {
		got := run(t.Context(), "", nil, append([]string{"bench", "client"}, c.args...)...)
		checkFailure(t, got, c.status, c.want)
	}
}

// What was interrupted says so, not what became of the processes that were ended.
func TestMeasurementsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{
		{"bench", "client", "--streams=10"},
		{"bench", "client", "--streams=10", "--find-max"},
		{"bench", "tracing"},
		{"profile", "--preset=tiny"},
	} {
		got := run(ctx, "", nil, args...)
		if want := "tandem: interrupted before a measurement was complete\n"; got.status != 130 || got.stderr != want {
			t.Errorf("%v: status %d: %s", args, got.status, got.stderr)
		}
	}
	checkFailure(t, run(ctx, "", nil, "bench", "modes", "--rates=1"), 130, "interrupted before a rate was measured on all sides")
}
