package mesh_test

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
)

func TestSimulatedOptionsAreChecked(t *testing.T) {
	for _, c := range []struct {
		says string
		set  func(*mesh.SimulatedOptions)
	}{
		{"", func(s *mesh.SimulatedOptions) {
			s.Slow, s.Fail, s.Stall, s.Die = []string{"decode-1=3", "*=0.5"}, []string{"*=0.1"}, []string{"prefill-1=30s+2s", "prefill-1=1m+1s"}, []string{"decode-1=1m"}
			s.Transfer, s.Jitter = "10GB/s", 0.1
		}},
		{"--simulated-transfer", func(s *mesh.SimulatedOptions) { s.Transfer = "10GB" }},
		{"--simulated-transfer", func(s *mesh.SimulatedOptions) { s.Transfer = "auto/s" }},
		{"--simulated-transfer", func(s *mesh.SimulatedOptions) { s.Transfer = "-1GB/s" }},
		{"--simulated-jitter", func(s *mesh.SimulatedOptions) { s.Jitter = -0.5 }},
		{"--simulated-jitter", func(s *mesh.SimulatedOptions) { s.Jitter = math.NaN() }},
		{"ID=FACTOR", func(s *mesh.SimulatedOptions) { s.Slow = []string{"decode-1"} }},
		{"ID=FACTOR", func(s *mesh.SimulatedOptions) { s.Slow = []string{"=3"} }},
		{"factor is 0", func(s *mesh.SimulatedOptions) { s.Slow = []string{"decode-1=0"} }},
		{"ID=FACTOR", func(s *mesh.SimulatedOptions) { s.Slow = []string{"decode-1=NaN"} }},
		{"ID=PROBABILITY", func(s *mesh.SimulatedOptions) { s.Fail = []string{"decode-1=2"} }},
		{"ID=AT+FOR", func(s *mesh.SimulatedOptions) { s.Stall = []string{"decode-1=2s"} }},
		{"ID=AT+FOR", func(s *mesh.SimulatedOptions) { s.Stall = []string{"decode-1=2s+-1s"} }},
		{"ID=AT+FOR", func(s *mesh.SimulatedOptions) { s.Stall = []string{"decode-1=2s+0s"} }},
		{"ID=AFTER", func(s *mesh.SimulatedOptions) { s.Die = []string{"decode-1=soon"} }},
		{"ID=AFTER", func(s *mesh.SimulatedOptions) { s.Die = []string{"decode-1=-1s"} }},
	} {
		o := upOptions(t)
		c.set(&o.Engine.SimulatedDevice)
		err := o.Validate()
		if (c.says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: error %v, which should speak of %q", o.Engine.SimulatedDevice, err, c.says)
		}
	}
}

func FuzzSimulatedTrouble(f *testing.F) {
	f.Add("decode-1=3", "*=0.5", "decode-1=1s+1s", "x=1m", "3MB/s")
	f.Fuzz(func(t *testing.T, slow, fail, stall, die, transfer string) {
		o := mesh.DefaultOptions()
		s := &o.Engine.SimulatedDevice
		s.Slow, s.Fail, s.Stall, s.Die, s.Transfer = []string{slow}, []string{fail}, []string{stall}, []string{die}, transfer
		if o.Validate() != nil {
			return
		}
		for _, text := range []string{slow, fail, stall, die} {
			if !strings.Contains(text, "=") {
				t.Fatalf("%q passed", text)
			}
		}
	})
}

// TestUpRefuses what can be found only at the start: a profile that is not there,
// trouble for nobody.
func TestUpRefusesProfileAndTrouble(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "p.json")
	if err := os.WriteFile(broken, []byte(`{"version":1`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		says string
		set  func(*mesh.EngineOptions)
	}{
		{"no such file", func(e *mesh.EngineOptions) { e.Profile = filepath.Join(t.TempDir(), "none.json") }},
		{"ends in the middle", func(e *mesh.EngineOptions) { e.Profile = broken }},
		{"no worker of this process is called decode-9", func(e *mesh.EngineOptions) { e.SimulatedDevice.Slow = []string{"decode-9=2"} }},
		{"does not hold one block", func(e *mesh.EngineOptions) { e.KVMemory = 1 }},
	} {
		o := upOptions(t)
		c.set(&o.Engine)
		ctx, cancel := context.WithCancel(t.Context())
		err := mesh.Run(ctx, o, quiet, prometheus.NewRegistry(), ignore, func(mesh.Up) { cancel() })
		cancel()
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("error %v, which should speak of %q", err, c.says)
		}
	}
}
