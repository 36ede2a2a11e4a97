package cli_test

import "testing"

func TestBenchClientMistakes(t *testing.T) {
	cases := []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--streams=0"}, 2, "0 streams: give 1 to 100000"},
		{[]string{"--duration=1ms"}, 2, "a duration of 1ms: give 1s to 1h"},
		{[]string{"--token-rate=0"}, 2, "--token-rate 0: give tokens a second above 0"},
		{[]string{"--ttft=1ms", "--ttft-jitter=5ms"}, 2, "give a mean from 0 and a jitter from 0 to the mean"},
		{[]string{"--streams=100000", "--duration=1h"}, 2, "give fewer streams or a shorter duration"},
		{[]string{"extra"}, 2, `takes no argument "extra"`},
		{[]string{"load", "127.0.0.1:1"}, 2, "needs the PLAN"},
		{[]string{"standin", "{"}, 1, "this command is for 'tandem bench client'"},
	}
	for _, c := range cases {
		got := run(t.Context(), "", nil, append([]string{"bench", "client"}, c.args...)...)
		checkFailure(t, got, c.status, c.want)
	}
}
