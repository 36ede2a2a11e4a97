package simulate_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/simulate"
)

func spec() model.Spec {
	return model.Spec{Name: "toy", Digest: "d1", VocabSize: 32000, HiddenSize: 1024, Layers: 12, Heads: 16, KVHeads: 4, HeadSize: 64, ContextTokens: 4096, BOS: 1, EOS: []int32{2}}
}

// policy is that of a router whose flags nobody changed.
func policy() (policy routing.Config, limits joining.Limits) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	policy.RegisterFlags(fs, "")
	limits.RegisterFlags(fs, "")
	policy.TenantMaxRequests = 100000
	return policy, limits
}

func config(prefill, decode int) simulate.Config {
	profile := latency.Model{BaseMs: 2, PerTokenMs: 0.05, PerContextTokenMs: 0.0001}.Profile()
	c := simulate.Config{
		Spec: spec(), BlockTokens: 32, Seed: 1, Routers: 1, Mode: inferencev1.Mode_MODE_AUTO,
		Network: simulate.Network{Latency: 50 * time.Microsecond, LocalLatency: 10 * time.Microsecond, BytesPerSecond: 10e9},
	}
	c.Routing, c.Limits = policy()
	for i := range prefill {
		c.Workers = append(c.Workers, simulated(fmt.Sprintf("p-%d", i+1), controlv1.Role_ROLE_PREFILL, profile))
	}
	for i := range decode {
		c.Workers = append(c.Workers, simulated(fmt.Sprintf("d-%d", i+1), controlv1.Role_ROLE_DECODE, profile))
	}
	return c
}

func simulated(id string, role controlv1.Role, profile *latency.Profile) *simulate.Worker {
	w := &simulate.Worker{
		ID: id, Host: id, Role: role, Profile: profile, Blocks: 4096, MaxBatchTokens: 1024, MaxSequences: 256,
		TransferLease: kvtransfer.DefaultLease, TransferCreditBytes: kvtransfer.DefaultCreditBytes,
	}
	w.RegisterFlags(pflag.NewFlagSet("", pflag.ContinueOnError), "", "decode", worker.DefaultDecodeChunkTokens)
	w.ChunkTokens = 512
	return w
}

func source(t testing.TB, rate float64, duration time.Duration, args ...string) workload.Source {
	t.Helper()
	var s workload.Spec
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.RegisterFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	src, err := s.New(workload.Params{Rate: rate, Duration: duration, VocabularySize: spec().VocabSize, ContextTokens: spec().ContextTokens})
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func run(t testing.TB, c simulate.Config, rate float64, duration time.Duration, args ...string) *record.Run {
	t.Helper()
	_, got := runOf(t, c, rate, duration, args...)
	return got
}

// runOf is run, with the cluster.
func runOf(t testing.TB, c simulate.Config, rate float64, duration time.Duration, args ...string) (*simulate.Cluster, *record.Run) {
	t.Helper()
	cluster, err := simulate.New(c)
	if err != nil {
		t.Fatal(err)
	}
	got, err := cluster.Run(simulate.Load{Source: source(t, rate, duration, args...), Offered: rate, Duration: duration, RequestTimeout: time.Minute, DrainTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return cluster, got
}

const disaggregated = inferencev1.Mode_MODE_DISAGGREGATED

func outcomes(r *record.Run) map[string]int {
	n := make(map[string]int)
	for _, rec := range r.Records {
		n[rec.Outcome.String()]++
	}
	return n
}

func TestServes(t *testing.T) {
	began := time.Now()
	r := run(t, config(2, 2), 20, 20*time.Second, "--prompt-tokens=300", "--output-tokens=50", "--seed=3")
	t.Log(time.Since(began), outcomes(r))
	if n := outcomes(r); n["completed"] != len(r.Records) || len(r.Records) < 300 {
		for _, rec := range r.Records {
			if rec.Outcome != record.Completed {
				t.Log(rec.Code, rec.Error)
				break
			}
		}
		t.Fatal(n)
	}
	var ttft []time.Duration
	for _, rec := range r.Records {
		ttft = append(ttft, rec.First()-rec.Due)
	}
	slices.Sort(ttft)
	t.Log("ttft p50", ttft[len(ttft)/2], "p99", ttft[len(ttft)*99/100], "route", r.Records[5].Route, "timings", r.Records[5].Timings)
}

// Equal seeds give equal results, to the nanosecond.
func TestRepeats(t *testing.T) {
	once := func() []record.Record {
		var all []record.Record
		for _, r := range run(t, config(2, 2), 40, 10*time.Second, "--prompt-tokens=uniform:20-600", "--output-tokens=uniform:1-60", "--seed=3").Records {
			all = append(all, *r)
		}
		return all
	}
	if diff := cmp.Diff(once(), once(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

// Whatever dies, each request ends once, and well: another worker goes on with it.
func TestDeaths(t *testing.T) {
	c := config(2, 3)
	c.Events = []simulate.Event{
		{At: 3 * time.Second, Do: simulate.Kill{Worker: "d-1"}}, {At: 5 * time.Second, Do: simulate.Kill{Worker: "p-1"}},
		{At: 6 * time.Second, Do: simulate.Start{Worker: "d-1"}}, {At: 7 * time.Second, Do: simulate.Start{Worker: "p-1"}},
		{At: 9 * time.Second, Do: simulate.Kill{Worker: "d-2"}},
	}
	r := run(t, c, 30, 12*time.Second, "--prompt-tokens=uniform:20-600", "--output-tokens=uniform:1-100", "--seed=4")
	if n := outcomes(r); n["completed"] != len(r.Records) {
		t.Fatal(n)
	}
}

// digestOnly has TestSameOnEveryProcessor print a digest and nothing else.
const digestOnly = "SIMULATE_DIGEST_ONLY"

// A run is the same on a processor without fused multiply-add, for which the mathematical
// functions have another code.
func TestSameOnEveryProcessor(t *testing.T) {
	c := config(2, 2)
	for _, w := range c.Workers {
		w.Jitter = 0.2
	}
	got := digest(t, run(t, c, 30, 10*time.Second, "--prompt-tokens=lognormal:300,200", "--output-tokens=lognormal:30,20", "--arrival=gamma", "--seed=3"))
	if os.Getenv(digestOnly) != "" {
		fmt.Println(got)
		return
	}
	other := exec.Command(os.Args[0], "-test.run=^TestSameOnEveryProcessor$")
	other.Env = append(os.Environ(), digestOnly+"=1", "GODEBUG=cpu.fma=off,cpu.avx2=off")
	out, err := other.Output()
	if err != nil || !strings.HasPrefix(string(out), got+"\n") {
		t.Errorf("the digest is %s here, and without FMA: %v, %s", got, err, out)
	}
}
