package swarmtest_test

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/simulate/swarmtest"
)

var (
	lasts  = flag.Duration("swarm.time", 0, "how long to run random scripts (default: none, or a minute in long tests)")
	seed   = flag.Uint64("swarm.seed", 1<<20, "seed of the first of them; the others follow it. 0: a random one")
	script = flag.String("swarm.script", "", "file with one script to run")
	folder = flag.String("swarm.out", os.TempDir(), "folder for the shrunk scripts of what fails")
)

// shrinks is how many runs go into making one script smaller.
const shrinks = 2000

// failure runs a script and says what did not hold.
func failure(s *swarmtest.Script) string {
	r, err := swarmtest.Run(s)
	if err != nil || r.Violation == nil { // a shrunk script may be none
		return ""
	}
	return r.Violation.Invariant
}

// report runs the script of a seed, and writes it down as small as it gets if it fails.
func report(t *testing.T, seed uint64) *swarmtest.Result {
	t.Helper()
	s := swarmtest.Generate(seed)
	r, err := swarmtest.Run(s)
	if err != nil {
		t.Errorf("seed %d: %v", seed, err)
		return r
	}
	if r.Violation == nil {
		return r
	}
	small := swarmtest.Shrink(s, shrinks, func(s *swarmtest.Script) bool { return failure(s) == r.Violation.Invariant })
	last, err := swarmtest.Run(small)
	if err != nil || last.Violation == nil {
		t.Errorf("seed %d: %v, and shrunk %v, %v", seed, r.Violation, last, err)
		return r
	}
	file := filepath.Join(*folder, fmt.Sprintf("swarm-%d.json", seed))
	if err := os.WriteFile(file, small.JSON(), 0o600); err != nil {
		t.Error(err)
	}
	t.Errorf("seed %d: %v\nshrunk to %d workers, %d requests, %d faults: %v\nrepeat it: go test ./simulate/swarmtest -run TestScript -swarm.script %s",
		seed, r.Violation, len(small.Workers), len(small.Requests), len(small.Faults), last.Violation, file)
	return r
}

// TestSeeds runs seeds that do not change.
func TestSeeds(t *testing.T) {
	seeds := uint64(150)
	if testing.Short() {
		seeds = 15
	}
	codes := make(map[codes.Code]int)
	for seed := range seeds {
		if r := report(t, seed); r != nil {
			for code, n := range r.Codes {
				codes[code] += n
			}
		}
	}
	t.Logf("requests by how they ended: %v", codes)
}

// TestSwarm runs random seeds for a while.
func TestSwarm(t *testing.T) {
	most := uint64(math.MaxUint64)
	if *lasts == 0 && longtest.Wanted() {
		// The same scripts on every machine, however fast.
		*lasts, most = time.Minute, 450
		if longtest.All() {
			most = 3500
		}
	}
	if *lasts == 0 {
		t.Skip("a long test: set TANDEM_LONG=1, or -swarm.time 1m")
	}
	first := *seed
	if first == 0 {
		first = rand.Uint64() >> 16
	}
	t.Logf("from seed %d on", first)
	end := time.Now().Add(*lasts)
	var ran, requests, won, lost, refused atomic.Uint64
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for time.Now().Before(end) && !t.Failed() && ran.Load() < most {
				if r := report(t, first+ran.Add(1)-1); r != nil {
					for _, n := range r.Codes {
						requests.Add(uint64(n))
					}
					won.Add(uint64(r.Hedges.Won))
					lost.Add(uint64(r.Hedges.Lost + r.Hedges.Ended))
					refused.Add(uint64(r.Hedges.Refused))
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d scripts with %d requests, up to seed %d; hedged attempts: %d won, %d lost, %d refused", ran.Load(), requests.Load(), first+ran.Load()-1, won.Load(), lost.Load(), refused.Load())
}

// TestScript runs the script of a file.
func TestScript(t *testing.T) {
	if *script == "" {
		t.Skip("name a file with -swarm.script")
	}
	text, err := os.ReadFile(*script)
	if err != nil {
		t.Fatal(err)
	}
	s, err := swarmtest.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	r, err := swarmtest.Run(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("requests by how they ended: %v", r.Codes)
	if r.Violation != nil {
		t.Error(r.Violation)
	}
}

// A script is written and read as it is, and one that is wrong is refused in one line.
func TestRead(t *testing.T) {
	s := swarmtest.Generate(3)
	got, err := swarmtest.Read(s.JSON())
	if err != nil || !bytes.Equal(got.JSON(), s.JSON()) {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"{":                                 "unexpected EOF",
		`{"speed": 1}`:                      "speed",
		`{"mode": "both"}`:                  "mode",
		`{"mode": "auto"}`:                  "policy",
		`{"mode": "auto", "policy": "slo"}`: "at least one router",
		strings.Replace(string(s.JSON()), `"kind": "`, `"kind": "un`, 1): "kind",
	} {
		if _, err := swarmtest.Read([]byte(text)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(swarmtest.Generate(1).JSON())
	f.Fuzz(func(t *testing.T, text []byte) {
		if s, err := swarmtest.Read(text); err == nil {
			if again, err := swarmtest.Read(s.JSON()); err != nil || !bytes.Equal(again.JSON(), s.JSON()) {
				t.Errorf("%v", err)
			}
		}
	})
}
