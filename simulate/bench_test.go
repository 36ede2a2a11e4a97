package simulate_test

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/simulate"
)

// digest is of all that a run's records say: equal runs have equal ones.
func digest(t testing.TB, r *record.Run) string {
	t.Helper()
	h := sha256.New()
	for _, rec := range r.Records {
		one := *rec
		one.Timings, one.Route = nil, nil
		fmt.Fprintf(h, "%+v\n", one)
		for _, m := range []proto.Message{rec.Timings, rec.Route} {
			text, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			h.Write(text)
		}
	}
	fmt.Fprintf(h, "%+v", r.Samples)
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// What an engine keeps to check the KV costs no virtual time.
func TestCheckContext(t *testing.T) {
	of := func(check bool) string {
		c := config(2, 2)
		c.CheckContext = check
		return digest(t, run(t, c, 30, 5*time.Second, "--prompt-tokens=uniform:20-600", "--output-tokens=uniform:1-60", "--seed=3"))
	}
	if brief, all := of(false), of(true); brief != all {
		t.Errorf("runs differ: %s, and %s with checks", brief, all)
	}
}

// azure is a mesh of A100s that run OPT-13B by DistServe's profile, and requests as long as
// in Azure's trace of conversations. The files are read from $TANDEM_TRACES; without them
// lengths and times are about the same.
func azure(t testing.TB, prefill, decode, routers int) (simulate.Config, []string) {
	t.Helper()
	profile := &latency.Profile{
		Version: latency.ProfileVersion, Model: "a100",
		Prefill: []latency.Regime{{Terms: latency.Terms{BaseMs: 18, PerTokenMs: 0.1, PerSquareMs: 7e-6}}},
		Decode:  []latency.Regime{{Terms: latency.Terms{BaseMs: 20, PerContextTokenMs: 0.0006, PerTokenMs: 0.04}}},
	}
	lengths := []string{"--prompt-tokens=lognormal:1155,1100", "--output-tokens=lognormal:211,160"}
	if dir := os.Getenv("TANDEM_TRACES"); dir != "" {
		f, err := os.Open(filepath.Join(dir, "profiler-a100-80g.distserve.json"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if profile, err = latency.ReadDistServe(f, "facebook/opt-13b", "1"); err != nil {
			t.Fatal(err)
		}
		lengths = []string{"--trace=" + filepath.Join(dir, "AzureLLMInferenceTrace_conv.csv"), "--prompt-tokens=empirical", "--output-tokens=empirical"}
	}
	c := config(prefill, decode)
	c.Routers = routers
	c.Spec.ContextTokens = benchContext
	for _, w := range c.Workers {
		w.Profile, w.Blocks, w.MaxBatchTokens, w.ChunkTokens = profile, 1900, 2048, 2048
	}
	return c, append(lengths, "--seed=3", fmt.Sprintf("--context-tokens=%d", benchContext))
}

const benchContext = 8192

var duration = flag.Duration("duration", 10*time.Second, "how long BenchmarkAzure sends requests, in virtual time")

// BenchmarkAzure serves at about 70% of what the workers hold.
func BenchmarkAzure(b *testing.B) {
	for _, c := range []struct {
		workers, prefill, decode, routers int
		rate                              float64
	}{
		{64, 24, 40, 1, 110},
		{1000, 375, 625, 4, 110 * 1000 / 64.},
	} {
		b.Run(fmt.Sprintf("workers=%d", c.workers), func(b *testing.B) {
			began := userTime(b)
			requests, done, tokens := 0, 0, 0
			var last *record.Run
			for b.Loop() {
				conf, args := azure(b, c.prefill, c.decode, c.routers)
				last = run(b, conf, c.rate, *duration, args...)
				requests += len(last.Records)
				done += outcomes(last)["completed"]
				for _, r := range last.Records {
					tokens += r.OutputTokens
				}
			}
			took := userTime(b) - began
			b.ReportMetric(float64(requests)/took.Seconds(), "requests/cpu-s")
			b.ReportMetric(float64(requests)/b.Elapsed().Seconds(), "requests/s")
			b.ReportMetric(float64(tokens)/float64(requests), "tokens/request")
			b.ReportMetric(float64(done)/float64(requests), "completed")
			b.ReportMetric(peakBytes(b), "peak-bytes")
			b.Log(digest(b, last), strings.TrimSpace(fmt.Sprint(outcomes(last))))
		})
	}
}

// userTime is the processor time of this process so far.
func userTime(t testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano())
}

// peakBytes is the most memory that this process has had.
func peakBytes(t testing.TB) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return float64(u.Maxrss) * 1024
}
