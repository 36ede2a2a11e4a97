package loadtest_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/goleak"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/loadtest/fakeserver"
	"github.com/tandem-serving/tandem/loadtest/finetimer"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ms = time.Millisecond

// fourSlots serves four requests at a time, 100 ms each with 6 tokens: 40 a second.
var fourSlots = fakeserver.Shape{
	TTFT: fakeserver.Delay{Mean: 50 * ms}, ITL: fakeserver.Delay{Mean: 10 * ms}, Slots: 4, Queue: 1 << 20,
}

// server is a fake server behind a client, in memory and on virtual time.
func server(t *testing.T, shape fakeserver.Shape) client.Client {
	t.Helper()
	engine, err := fakeserver.NewEngine(shape, false, finetimer.Portable())
	if err != nil {
		t.Fatal(err)
	}
	fake := fakeserver.NewServer(engine)
	listener := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- fake.Serve(listener) }()
	tandem, err := client.NewTandem(client.TandemConfig{
		Address: "fake:1",
		Dialer:  func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tandem.Close(); err != nil {
			t.Error(err)
		}
		fake.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	return tandem
}

// config takes flags as a command line would.
func config(t *testing.T, flags ...string) loadtest.Config {
	t.Helper()
	var c loadtest.Config
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	c.RegisterFlags(fs)
	plain := []string{"--prompt-tokens=8", "--output-tokens=6", "--seed=1"}
	if len(flags) > 0 && strings.HasPrefix(flags[0], "--trace=") {
		plain = plain[2:] // a trace has its own lengths
	}
	if err := fs.Parse(append(plain, flags...)); err != nil {
		t.Fatal(err)
	}
	c.DurationSet, c.WarmupSet = fs.Changed("duration"), fs.Changed("warmup")
	c.Timer = finetimer.Portable
	return c
}

// begun records which runs began.
type begun struct {
	what  []string
	plans []loadtest.Plan
	at    func(record.Sample)
}

func (b *begun) Plan(p loadtest.Plan)               { b.plans = append(b.plans, p) }
func (b *begun) Begin(what string, _ time.Duration) { b.what = append(b.what, what) }
func (b *begun) Sample(s record.Sample) {
	if b.at != nil {
		b.at(s)
	}
}

func run(t *testing.T, c loadtest.Config, shape fakeserver.Shape, progress *begun) *loadtest.Outcome {
	t.Helper()
	out, err := loadtest.Run(t.Context(), c, server(t, shape), progress)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestOneRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := config(t, "--rate=10", "--arrival=constant", "--duration=60s", "--warmup=2s", "--slo=ttft:p99<60ms,tpot:p99<5ms")
		out := run(t, c, fourSlots, &begun{})
		r := out.Report
		if r.Requests < 598 || r.Requests > 602 || r.Completed != r.Requests {
			t.Errorf("%d requests, %d completed, want about 600, all", r.Requests, r.Completed)
		}
		if r.Verdict != measure.Stable || r.Search != nil || len(out.Runs) != 1 || r.Interrupted {
			t.Errorf("verdict %s (%s), search %v, %d runs", r.Verdict, r.Reason, r.Search, len(out.Runs))
		}
		if p := r.TTFT.P99; p == nil || *p < 49.9 || *p > 50.2 {
			t.Errorf("p99 of TTFT is %v, injected was 50 ms", p)
		}
		if len(r.Objectives) != 2 || !r.Objectives[0].Met || r.Objectives[1].Met || r.SLOAttainment != 0 {
			t.Errorf("objectives %+v, attainment %v", r.Objectives, r.SLOAttainment)
		}
	})
}

// A trace is measured from its first request to its last, however short. It is an error
// if nothing is left to measure.
func TestShortTraces(t *testing.T) {
	file := func(lines ...string) string {
		path := filepath.Join(t.TempDir(), "trace.csv")
		text := "TIMESTAMP,ContextTokens,GeneratedTokens\n" + strings.Join(lines, "\n") + "\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	short := file("2023-11-16 18:00:00.0,8,4", "2023-11-16 18:00:01.0,8,4", "2023-11-16 18:00:02.0,8,4")
	untimed := filepath.Join(t.TempDir(), "trace.json")
	if err := os.WriteFile(untimed, []byte(`[{"conversations": [{"from": "human", "value": "One?"}, {"from": "gpt", "value": "1"}]}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		flags    []string
		window   float64
		requests int
		wrong    string
	}{
		{[]string{"--trace=" + short}, 2, 3, ""},
		{[]string{"--trace=" + short, "--warmup=1s"}, 1, 2, ""},
		{[]string{"--trace=" + short, "--duration=1500ms"}, 1.5, 2, ""},
		{[]string{"--trace=" + short, "--duration=20s"}, 2, 3, ""},
		{[]string{"--trace=" + short, "--warmup=3s"}, 0, 0, "all requests (3) were due in the warm-up of 3s: pass a shorter --warmup"},
		{[]string{"--trace=" + file()}, 0, 0, "the trace holds no requests"},
		{[]string{"--trace=" + untimed, "--sweep"}, 0, 0, "the trace ended within the warm-up of 3s: pass rates"},
		{[]string{"--rate=2", "--arrival=constant", "--warmup=3s", "--duration=2s"}, 2, 4, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			out, err := loadtest.Run(t.Context(), config(t, c.flags...), server(t, fourSlots), &begun{})
			if c.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), c.wrong) {
					t.Errorf("%v: %v, want %q", c.flags, err, c.wrong)
				}
				return
			}
			if err != nil {
				t.Fatalf("%v: %v", c.flags, err)
			}
			if r := out.Report; r.WindowS != c.window || r.Requests != c.requests {
				t.Errorf("%v: %d requests in %v s, want %d in %v s", c.flags, r.Requests, r.WindowS, c.requests, c.window)
			}
		})
	}
}

// Whatever does the runs, sweeps and reports are the same.
func TestRunsDoneByOthers(t *testing.T) {
	c := config(t, "--sweep=10,20,80", "--slo=ttft:p50<100ms", "--duration=20s")
	c.Drive = func(_ context.Context, o drive.Options) (*record.Run, error) {
		r := &record.Run{Offered: o.Offered, From: o.Warmup, To: o.Warmup + o.Duration, Drained: o.Warmup + o.Duration}
		for {
			q, err := o.Source.Next()
			if err != nil {
				return r, nil
			}
			r.Samples = append(r.Samples, record.Sample{At: q.Due, Due: len(r.Records), Ended: len(r.Records)})
			first := q.Due + time.Duration(o.Offered)*2*time.Millisecond
			r.Records = append(r.Records, &record.Record{
				Index: len(r.Records), Due: q.Due, Dispatched: q.Due, Sent: q.Due, Admitted: q.Due, End: first,
				Arrivals: []record.Arrival{{At: first, Tokens: 1}}, Outcome: record.Completed, OutputTokens: 1,
			})
		}
	}
	out := run(t, c, fourSlots, new(begun))
	if got := out.Report.Search.MaxRate; got == nil || *got != 20 {
		t.Errorf("the highest rate that passed is %v, want 20", got)
	}
	if out.Report.Client.Bottleneck != "" || out.Report.Client.Cores != 0 {
		t.Errorf("nobody measured the client: %+v", out.Report.Client)
	}
}

// A search whose requests a tenant's limit refuses says so, and not that the machine was busy
// as well.
func TestTenantsLimitIsTheOneCause(t *testing.T) {
	c := config(t, "--sweep=10,20", "--duration=20s")
	c.Drive = func(_ context.Context, o drive.Options) (*record.Run, error) {
		r := &record.Run{Offered: o.Offered, From: o.Warmup, To: o.Warmup + o.Duration, Drained: o.Warmup + o.Duration}
		r.Client.Bottleneck = record.MachineBusy + ": they used 99%"
		for {
			q, err := o.Source.Next()
			if err != nil {
				return r, nil
			}
			r.Records = append(r.Records, &record.Record{
				Index: len(r.Records), Due: q.Due, Dispatched: q.Due, Sent: q.Due, Admitted: record.Unset, End: q.Due,
				Outcome: record.Rejected, Code: "RESOURCE_EXHAUSTED", Error: "not now", Reason: "TENANT_LIMIT",
			})
		}
	}
	r := run(t, c, fourSlots, new(begun)).Report
	var table strings.Builder
	if err := r.WriteTable(&table, 100); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(table.String(), "because their tenant had as many as it may") || strings.Contains(table.String(), record.MachineBusy) {
		t.Errorf("want one cause:\n%s", table.String())
	}
	if r.Verdict != measure.Overloaded || r.Client.Bottleneck == "" {
		t.Errorf("the verdict is %s, the client's limit %q", r.Verdict, r.Client.Bottleneck)
	}
}

// A server with one request at a time is measured after the warm-up, in which the first requests are slow.
func TestIdle(t *testing.T) {
	c := config(t, "--rate=1", "--duration=2s", "--warmup=3s")
	c.Drive = func(_ context.Context, o drive.Options) (*record.Run, error) {
		r := &record.Run{From: o.Warmup, To: o.Warmup + o.Duration}
		for at := time.Duration(0); at < r.To; {
			took := 50 * ms
			if at < o.Warmup {
				took = 500 * ms
			}
			r.Records = append(r.Records, &record.Record{
				Due: at, Dispatched: at, Arrivals: []record.Arrival{{At: at + took/2, Tokens: 1}, {At: at + took, Tokens: 1}}, Outcome: record.Completed, OutputTokens: 2,
			})
			at += took
		}
		r.Records = r.Records[:8] // six of the warm-up
		return r, nil
	}
	synctest.Test(t, func(t *testing.T) {
		session, err := loadtest.NewSession(t.Context(), c, server(t, fourSlots), nil)
		if err != nil {
			t.Fatal(err)
		}
		if idle, err := session.Idle(t.Context()); err != nil || idle.TTFT != 25*ms || idle.TPOT != 25*ms || idle.E2E != 50*ms {
			t.Errorf("%+v, %v", idle, err)
		}
	})
}

// A server that takes longer than the whole run for one answer is measured by that one, though it began in
// the warm-up.
func TestIdleOfASlowServer(t *testing.T) {
	c := config(t, "--rate=1", "--duration=2s", "--warmup=3s")
	c.Drive = func(_ context.Context, o drive.Options) (*record.Run, error) {
		r := &record.Run{From: o.Warmup, To: o.Warmup + o.Duration}
		r.Records = []*record.Record{{Arrivals: []record.Arrival{{At: time.Second, Tokens: 1}, {At: 9 * time.Second, Tokens: 1}}, Outcome: record.Completed, OutputTokens: 2}}
		return r, nil
	}
	synctest.Test(t, func(t *testing.T) {
		session, err := loadtest.NewSession(t.Context(), c, server(t, fourSlots), nil)
		if err != nil {
			t.Fatal(err)
		}
		if idle, err := session.Idle(t.Context()); err != nil || idle.TTFT != time.Second || idle.E2E != 9*time.Second {
			t.Errorf("%+v, %v", idle, err)
		}
	})
}

// A run with a ramp has the requests that it must have: its mean rate counts, not its last.
func TestRampIsLongEnough(t *testing.T) {
	c := config(t, "--rate=10", "--arrival=ramp", "--duration=1s", "--warmup=0s", "--min-requests=100")
	if err := c.Validate(); err != nil || c.Sends() != 20*time.Second {
		t.Errorf("requests are sent for %v, want 20s: %v", c.Sends(), err)
	}
}

func TestClosedLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := run(t, config(t, "--concurrency=4", "--duration=20s"), fourSlots, &begun{})
		if r := out.Report; r.CompletedRPS < 38 || r.CompletedRPS > 40.5 || r.Concurrency != 4 {
			t.Errorf("%v requests a second with %d at a time; four slots of 100 ms make 40", r.CompletedRPS, r.Concurrency)
		}
	})
}

func TestFindMax(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	synctest.Test(t, func(t *testing.T) {
		out := run(t, config(t, "--find-max", "--duration=60s", "--slo=ttft:p90<80ms"), fourSlots, &begun{})
		s := out.Report.Search
		if s == nil || s.MaxRate == nil {
			t.Fatalf("search %+v", s)
		}
		// Four servers of 100 ms with Poisson arrivals (M/D/4): simulated
		// independently, the p90 of the wait is 30 ms at 22 a second and 13 ms at 19.
		if *s.MaxRate < 17 || *s.MaxRate > 24 {
			t.Errorf("at most %v requests a second", *s.MaxRate)
		}
		if out.Report.Rate != *s.MaxRate {
			t.Errorf("the figures are of %v requests a second, not of the best, %v", out.Report.Rate, *s.MaxRate)
		}
		if len(out.Runs) != 1 || out.Runs[0] == nil {
			t.Errorf("the records of %d runs are kept, nobody asked for them", len(out.Runs))
		}
	})
}

// The example of the command's help: a p99 needs more requests than the default duration
// gives at such rates, so steps last longer.
func TestFindMaxOfTheHelp(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	synctest.Test(t, func(t *testing.T) {
		progress := &begun{}
		out := run(t, config(t, "--find-max", "--slo", "ttft:p99<200ms", "--prompt-tokens", "256", "--output-tokens", "64"), fourSlots, progress)
		s := out.Report.Search
		if s == nil || s.MaxRate == nil || s.Bracket == nil || s.Limited != "" {
			t.Fatalf("search %v", s)
		}
		plan, sent := progress.plans[0], 0.0
		for _, f := range out.Report.Runs {
			sent += f.WarmupS + f.WindowS
		}
		if len(progress.plans) != 1 || len(s.Steps) > plan.Most || sent > plan.Bound.Seconds() || *s.MaxRate < plan.Least || *s.MaxRate > plan.Highest {
			t.Errorf("%d steps of %v s to %v/s, planned %+v", len(s.Steps), sent, *s.MaxRate, plan)
		}
		if last := progress.what[len(progress.what)-1]; !strings.Contains(last, "/s (sends for up to ") || !strings.HasSuffix(last, " more)") {
			t.Errorf("the last step is %q", last)
		}
		if !strings.Contains(progress.what[0], "estimating") {
			t.Errorf("the search does not begin at an estimate: %q", progress.what)
		}
		for _, step := range s.Steps {
			if step.Unknown {
				t.Errorf("%v/s tells nothing: %s", step.Rate, step.Why)
			}
		}
		// Four servers of 680 ms with Poisson arrivals (M/D/4): simulated
		// independently, the p99 of the wait is 150 ms at 1.55 a second.
		if *s.MaxRate < 1.1 || *s.MaxRate > 2.1 {
			t.Errorf("at most %v requests a second", *s.MaxRate)
		}
	})
}

// If the client is the bottleneck, the search says that the server may do more.
func TestFindMaxWhereTheClientIsTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := run(t, config(t, "--find-max", "--rate=64", "--arrival=constant", "--max-in-flight=2"), fourSlots, &begun{})
		s := out.Report.Search
		if s == nil || s.MaxRate == nil || *s.MaxRate != 16 || s.Bracket != nil || !strings.Contains(s.Limited, "at least 16/s; at 32/s the client was the bottleneck") {
			t.Errorf("search %v", s)
		}
	})
}

// A rate too low for its percentile within the longest step is not the server's failure.
func TestFindMaxThatWouldTakeTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		out := run(t, config(t, "--find-max", "--rate=0.1", "--slo=ttft:p99<200ms"), fourSlots, &begun{})
		s := out.Report.Search
		if s == nil || s.MaxRate != nil || s.Bracket != nil || !strings.Contains(s.Limited, "of the 368 that it takes") {
			t.Errorf("search %v", s)
		}
		if took := time.Since(began); took > time.Hour {
			t.Errorf("it took %v", took)
		}
	})
}

// Steps at the same rate draw different arrivals and lengths; steps at different rates
// share them.
func TestRepeatsDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := loadtest.NewSession(t.Context(), config(t, "--output-tokens=uniform:1-100", "--duration=20s", "--warmup=0s"), server(t, fourSlots), &begun{})
		if err != nil {
			t.Fatal(err)
		}
		var tokens [3][10]int
		var due [3]time.Duration
		for i, rate := range []float64{2, 2, 4} {
			if _, err := s.Step(t.Context(), "", rate); err != nil {
				t.Fatal(err)
			}
			for k := range tokens[i] {
				tokens[i][k] = s.Last().Records[k].OutputTokens
			}
			due[i] = s.Last().Records[9].Due
		}
		if tokens[0] == tokens[1] || due[0] == due[1] {
			t.Errorf("lengths %v again, the tenth due at %v", tokens[0], due[0])
		}
		if tokens[0] != tokens[2] || (due[0]-2*due[2]).Abs() > time.Microsecond {
			t.Errorf("lengths %v and %v, the tenth due at %v and %v", tokens[0], tokens[2], due[0], due[2])
		}
	})
}

// A workload's files are read once, before the first run.
func TestFilesAreReadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "text")
		if err := os.WriteFile(path, []byte(strings.Repeat("It was a dark and stormy night. ", 200)), 0o600); err != nil {
			t.Fatal(err)
		}
		c := config(t, "--rate=10", "--duration=5s", "--text-file", path)
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if out := run(t, c, fourSlots, &begun{}); out.Report.Completed == 0 {
			t.Error("nothing was completed")
		}
	})
}

func TestEstimateWithFewInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := loadtest.NewSession(t.Context(), config(t, "--max-in-flight=2"), server(t, fourSlots), &begun{})
		if err != nil {
			t.Fatal(err)
		}
		if capacity, err := s.Estimate(t.Context()); err != nil || capacity < 18 || capacity > 21 {
			t.Errorf("%v requests a second, two at a time; want 20: %v", capacity, err)
		}
	})
}

func TestInterruptionKeepsWhatWasMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		progress := &begun{at: func(s record.Sample) {
			if s.At > 20*time.Second {
				cancel()
			}
		}}
		began := time.Now()
		out, err := loadtest.Run(ctx, config(t, "--rate=10", "--duration=1h"), server(t, fourSlots), progress)
		if err != nil {
			t.Fatal(err)
		}
		if r := out.Report; !r.Interrupted || r.Completed < 100 || r.TTFT.P50 == nil {
			t.Errorf("interrupted %v, %d completed", r.Interrupted, r.Completed)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("ended after %v", took)
		}
	})
}

func TestServerThatServesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := loadtest.Run(t.Context(), config(t, "--sweep"), server(t, fakeserver.Shape{RejectShare: 1}), &begun{})
		if err == nil || !strings.Contains(err.Error(), "RESOURCE_EXHAUSTED") || !strings.Contains(err.Error(), "--sweep=1,2,4") {
			t.Errorf("the error is %v", err)
		}
	})
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		flags []string
		says  string
	}{
		{nil, "say how much load"},
		{[]string{"--rate=5", "--sweep"}, "pass one of them"},
		{[]string{"--concurrency=5", "--find-max"}, "pass one of them"},
		{[]string{"--rate=-1"}, "--rate"},
		{[]string{"--rate=1e9"}, "--rate"},
		{[]string{"--rate=NaN"}, "--rate"},
		{[]string{"--sweep=1,x"}, "--sweep"},
		{[]string{"--rate=1", "--duration=-1s"}, "--duration"},
		{[]string{"--rate=1", "--warmup=-1s"}, "--warmup"},
		{[]string{"--rate=1", "--max-in-flight=0"}, "--max-in-flight"},
		{[]string{"--rate=1", "--request-timeout=0"}, "--request-timeout"},
		{[]string{"--rate=1", "--drain-timeout=-1s"}, "--drain-timeout"},
		{[]string{"--rate=1", "--min-requests=-1"}, "--min-requests"},
		{[]string{"--rate=1", "--slo=ttft:p99"}, "--slo"},
		{[]string{"--rate=1", "--class-slo=chat"}, "NAME=TERMS"},
		{[]string{"--rate=1", "--class=chat=1", "--class-slo=chat=ttft"}, "--class-slo chat"},
		{[]string{"--rate=1", "--preset=mlperf:gpt"}, "mlperf:llama-3.1-8b-server"},
		{[]string{"--trace=/nowhere/trace.csv"}, "/nowhere/trace.csv"},
		{[]string{"--find-max", "--arrival=ramp"}, "--arrival ramp"},
		{[]string{"--sweep=1,2", "--arrival=ramp"}, "--arrival ramp"},
		{[]string{"--concurrency=2", "--surge=1s+1s=2"}, "--surge multiplies a rate"},
		{[]string{"--concurrency=2", "--arrival=gamma", "--burstiness=0.5"}, "--arrival gamma is of an open loop"},
		{[]string{"--concurrency=2", "--min-requests=9"}, "--min-requests lengthens a run by its rate"},
		{[]string{"--rate=1", "--class=chat=1", "--class-slo=nosuch=ttft:p99<1s"}, "there are chat"},
		{[]string{"--rate=1", "--class-slo=nosuch=ttft:p99<1s"}, "add --class"},
		{[]string{"--rate=1", "--min-requests=9000000000000000000"}, "--min-requests"},
		{[]string{"--sweep=1e-6,1", "--min-requests=100"}, "raise the rate"},
		{[]string{"--rate=1e-300", "--min-requests=1"}, "raise the rate"},
	} {
		config := config(t, c.flags...)
		if err := config.Validate(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: the error %v does not say %q", c.flags, err, c.says)
		}
	}
}
