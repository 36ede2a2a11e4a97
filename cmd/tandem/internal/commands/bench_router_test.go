package commands_test

import (
	"context"
	"testing"
)

func TestBenchRouterMistakes(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--workers=1"}, 2, "--workers: 1 is outside 2"},
		{[]string{"--streams=0"}, 2, "--streams: 0 is outside 1"},
		{[]string{"--streams=8", "--connections=9"}, 2, "--connections: 9 is outside 0 to 8"},
		{[]string{"--streams=8", "--connections=2", "--openai"}, 2, "one stream at a time"},
		{[]string{"--prefix-blocks=2000000"}, 2, "which is as many as a router indexes"},
		{[]string{"--itl=0s"}, 2, "--itl: 0s is outside 1ms"},
		{[]string{"--tokens=100000"}, 2, "--tokens: a prompt of 64 tokens and an answer of 100000 exceed the 2048"},
		{[]string{"--model=/nowhere"}, 1, "/nowhere"},
		{[]string{"extra"}, 2, `takes no argument "extra"`},
	} {
		checkFailure(t, run(t.Context(), "", nil, append([]string{"bench", "router"}, c.args...)...), c.status, c.want)
	}
}

func TestBenchRouterInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	checkFailure(t, run(ctx, "", nil, "bench", "router", "--streams=8", "--json"), 130, "interrupted before a measurement was complete")
}
