package calibrate_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/loadtest/calibrate"
	"github.com/tandem-serving/tandem/loadtest/fakeserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ms = time.Millisecond

func plan() calibrate.Plan {
	return calibrate.Plan{
		Streams: 5, Duration: time.Second, TokensPerStream: 6, PromptTokens: 3,
		TTFT: fakeserver.Delay{Mean: 20 * ms, Jitter: 5 * ms}, ITL: fakeserver.Delay{Mean: 10 * ms}, Seed: 3,
	}
}

// Both parts, in one process over pipes: every token sent was seen. Their punctuality is
// for a measurement to judge.
func TestBothParts(t *testing.T) {
	for name, http := range map[string]bool{"grpc": false, "http": true} {
		t.Run(name, func(t *testing.T) {
			p := plan()
			p.HTTP = http
			stdin, closeStdin := io.Pipe()
			stdout, report := io.Pipe()
			served := make(chan error, 1)
			go func() {
				err := calibrate.Serve(t.Context(), p, stdin, report)
				served <- errors.Join(err, report.CloseWithError(err))
			}()
			out := bufio.NewReader(stdout)
			address, err := out.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			var saw strings.Builder
			if err := calibrate.Load(t.Context(), p, strings.TrimSpace(address), &saw); err != nil {
				t.Fatal(err)
			}
			if err := closeStdin.Close(); err != nil {
				t.Fatal(err)
			}
			r, err := calibrate.Join(p, out, strings.NewReader(saw.String()))
			if err != nil {
				t.Fatal(err)
			}
			if err := <-served; err != nil {
				t.Error(err)
			}
			if r.Requests < 20 || r.Completed != r.Requests || r.Tokens != 6*r.Requests || r.Failure != "" {
				t.Errorf("%+v", r)
			}
			// A busy machine may delay a request between its arrival and the start of
			// service.
			if r.TTFT.Injected.P50 < 15 || r.ITL.Injected.P50 != 10 || r.ITL.Injected.P99 != 10 {
				t.Errorf("injected %+v, %+v", r.TTFT.Injected, r.ITL.Injected)
			}
			// No token is seen before it was sent, or sent before it was due.
			if r.Delivery.P50 <= 0 || r.ServerLateness.P50 < 0 || r.TTFT.Reported.P50 < r.TTFT.Injected.P50 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// closed is an output that nobody reads.
type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// A fake server whose parent is gone exits completely.
func TestServerWithoutAParent(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, http := range []bool{false, true} {
		p := plan()
		p.HTTP = http
		if err := calibrate.Serve(t.Context(), p, strings.NewReader(""), closed{}); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("HTTP %v: %v", http, err)
		}
	}
}

func TestFindMax(t *testing.T) {
	cases := []struct {
		name          string
		holds         int // at most so many
		start, best   int
		mostMeasured  int
		leastMeasured int
	}{
		{"doubles and bisects", 5000, 1000, 5000, 12, 5},
		{"not even the first", 10, 1000, 0, 1, 1},
		{"all that a plan can have", 1 << 30, 50_000, 100_000, 3, 2},
	}
	for _, c := range cases {
		p := plan()
		p.Streams = c.start
		best, all, err := calibrate.FindMax(t.Context(), p, func(_ context.Context, p calibrate.Plan) (*calibrate.Result, error) {
			r := &calibrate.Result{Plan: p, Requests: 10, Completed: 10, StreamsMax: p.Streams}
			if p.Streams > c.holds {
				r.DispatchDelay.P99 = calibrate.DispatchDelayMost
			}
			return r, nil
		})
		if err != nil || len(all) > c.mostMeasured || len(all) < c.leastMeasured {
			t.Errorf("%s: %v after %d measurements", c.name, err, len(all))
		}
		switch {
		case c.best == 0:
			if best != nil {
				t.Errorf("%s: %+v", c.name, best)
			}
		case best == nil || best.Plan.Streams > c.best || best.Plan.Streams < c.best*9/10:
			t.Errorf("%s: %+v, want nearly %d", c.name, best, c.best)
		}
	}
}

func TestPlan(t *testing.T) {
	cases := []struct {
		change func(*calibrate.Plan)
		want   string
	}{
		{func(p *calibrate.Plan) { p.Streams = 0 }, "streams"},
		{func(p *calibrate.Plan) { p.Duration = 0 }, "give 1s to 1h"},
		{func(p *calibrate.Plan) { p.TokensPerStream = 1 }, "tokens a stream"},
		{func(p *calibrate.Plan) { p.PromptTokens = 0 }, "tokens a prompt"},
		{func(p *calibrate.Plan) { p.TTFT, p.ITL = fakeserver.Delay{}, fakeserver.Delay{} }, "at least one of them"},
		{func(p *calibrate.Plan) { p.TTFT.Jitter = time.Hour }, "jitter"},
		{func(p *calibrate.Plan) { p.Streams, p.Duration = 100_000, time.Hour }, "fewer streams"},
	}
	for _, c := range cases {
		p := plan()
		c.change(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want an error with %q", err, c.want)
		}
	}
}

// A program other than tandem fails the measurement, and nothing is left running.
func TestMeasureWithoutItsParts(t *testing.T) {
	for _, binary := range []string{"/nowhere/tandem", "/bin/true", "/bin/cat"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := calibrate.Measure(ctx, plan(), calibrate.Processes{
			Binary: binary,
			Server: func(calibrate.Plan) []string { return nil },
			Load:   func(calibrate.Plan, string) []string { return nil },
		})
		cancel()
		if err == nil || !strings.Contains(err.Error(), "fake server") {
			t.Errorf("%s: %v", binary, err)
		}
	}
}
