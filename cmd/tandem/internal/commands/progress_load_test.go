package commands_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/commands"
	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/record"
)

// A single run says how much of it is warm-up.
func TestProgressSaysTheWarmup(t *testing.T) {
	const s = time.Second
	for terminal, want := range map[bool]string{
		false: "5 requests/s for 18s, of which the first 3s are warm-up\n",
		true:  "<5 requests/s · 2 of 18 s, warm-up · 10 due · 1 open · 4.5 done/s · 9 tokens/s<5 requests/s · 3 of 18 s · 15 due · 1 open · 5.0 done/s · 12 tokens/s<",
	} {
		var out strings.Builder
		progress, finish := commands.NewLoadProgressAfter(&out, terminal, 3*s)
		progress.Begin("5 requests/s", 18*s)
		progress.Sample(record.Sample{At: 2 * s, Due: 10, Ended: 9, Tokens: 18})
		progress.Sample(record.Sample{At: 3 * s, Due: 15, Ended: 14, Tokens: 30})
		finish()
		if diff := cmp.Diff(want, strings.ReplaceAll(out.String(), "\r\x1b[K", "<")); diff != "" {
			t.Errorf("on a terminal %t: -want +got\n%s", terminal, diff)
		}
	}
}

// A sweep says what all of it takes before it begins, and at each step what is left.
func TestProgressOfASweep(t *testing.T) {
	const s = time.Second
	sweep := func(p loadtest.Progress) {
		p.Begin("estimating the capacity", 13*s)
		p.Sample(record.Sample{At: 5 * s, Due: 70, Ended: 6})
		p.Plan(loadtest.Plan{Requests: 368, For: "ttft:p99", Shortest: 33 * s, Steps: []loadtest.PlannedStep{{Rate: 4, Length: 114 * s}, {Rate: 16, Length: 33 * s}, {Rate: 40, Length: 33 * s}}})
		for i, step := range []string{"step 1 of 3, 4 requests/s", "step 2 of 3, 16 requests/s", "step 3 of 3, 40 requests/s"} {
			p.Begin(step, []time.Duration{114 * s, 33 * s, 33 * s}[i])
			p.Sample(record.Sample{At: 30 * s, Due: 120, Ended: 118, Tokens: 900, Failed: i})
			p.Sample(record.Sample{At: 64 * s, Due: 256, Ended: 256, Tokens: 1920, Failed: i})
		}
	}
	const plan = "3 rates from 4 to 40 requests/s, about 3m0s\neach takes 33s with its warm-up, or longer until it has the 368 requests that ttft:p99 needs: up to 1m54s, at 4/s\n" +
		"to shorten it, pass higher rates, or a lower percentile in --slo: p90 needs 36\n"
	for _, c := range []struct {
		name     string
		terminal bool
		want     string
	}{
		{"elsewhere", false, `estimating the capacity for 13s
` + plan + `step 1 of 3, 4 requests/s for 1m54s; 3m0s left
step 1 of 3, 4 requests/s · 64 of 114 s · 1m56s left
step 2 of 3, 16 requests/s for 33s; 1m6s left
step 2 of 3, 16 requests/s · 64 of 33 s · 33s left
step 3 of 3, 40 requests/s for 33s
step 3 of 3, 40 requests/s · 64 of 33 s
`},
		{"on a terminal", true, `<estimating the capacity · 5 of 13 s · 70 due · 64 open · 1.2 done/s · 0 tokens/s<` + plan +
			`<step 1 of 3, 4 requests/s · 30 of 114 s · 2m30s left · 120 due · 2 open · 3.9 done/s · 30 tokens/s` +
			`<step 1 of 3, 4 requests/s · 64 of 114 s · 1m56s left · 256 due · 0 open · 4.1 done/s · 30 tokens/s<` +
			`<step 2 of 3, 16 requests/s · 30 of 33 s · 36s left · 120 due · 2 open · 3.9 done/s · 30 tokens/s · 1 failed` +
			`<step 2 of 3, 16 requests/s · 64 of 33 s · 33s left · 256 due · 0 open · 4.1 done/s · 30 tokens/s · 1 failed<` +
			`<step 3 of 3, 40 requests/s · 30 of 33 s · 120 due · 2 open · 3.9 done/s · 30 tokens/s · 2 failed` +
			`<step 3 of 3, 40 requests/s · 64 of 33 s · 256 due · 0 open · 4.1 done/s · 30 tokens/s · 2 failed<`},
	} {
		var out strings.Builder
		progress, finish := commands.NewLoadProgress(&out, c.terminal)
		sweep(progress)
		finish()
		finish()
		if diff := cmp.Diff(c.want, strings.ReplaceAll(out.String(), "\r\x1b[K", "<")); diff != "" {
			t.Errorf("%s: -want +got\n%s", c.name, diff)
		}
	}
}
