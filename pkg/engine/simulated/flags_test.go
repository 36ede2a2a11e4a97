package simulated_test

import (
	"math"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/pkg/engine/simulated"
)

func defaults() (config simulated.Config) {
	config.RegisterFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	return config
}

func TestFlagsAreChecked(t *testing.T) {
	for _, c := range []struct {
		says string
		set  func(*simulated.Config)
	}{
		{"", func(s *simulated.Config) {
			s.Slow, s.Fail, s.Stall, s.Die = []string{"decode-1=3", "*=0.5"}, []string{"*=0.1"}, []string{"prefill-1=30s+2s", "prefill-1=1m+1s"}, []string{"decode-1=1m"}
			s.Transfer, s.Jitter = "10GB/s", 0.1
		}},
		{"--simulated-transfer", func(s *simulated.Config) { s.Transfer = "10GB" }},
		{"--simulated-transfer", func(s *simulated.Config) { s.Transfer = "auto/s" }},
		{"--simulated-transfer", func(s *simulated.Config) { s.Transfer = "-1GB/s" }},
		{"--simulated-jitter", func(s *simulated.Config) { s.Jitter = -0.5 }},
		{"--simulated-jitter", func(s *simulated.Config) { s.Jitter = math.NaN() }},
		{"ID=FACTOR", func(s *simulated.Config) { s.Slow = []string{"decode-1"} }},
		{"ID=FACTOR", func(s *simulated.Config) { s.Slow = []string{"=3"} }},
		{"factor is 0", func(s *simulated.Config) { s.Slow = []string{"decode-1=0"} }},
		{"ID=FACTOR", func(s *simulated.Config) { s.Slow = []string{"decode-1=NaN"} }},
		{"ID=PROBABILITY", func(s *simulated.Config) { s.Fail = []string{"decode-1=2"} }},
		{"ID=AT+FOR", func(s *simulated.Config) { s.Stall = []string{"decode-1=2s"} }},
		{"ID=AT+FOR", func(s *simulated.Config) { s.Stall = []string{"decode-1=2s+-1s"} }},
		{"ID=AT+FOR", func(s *simulated.Config) { s.Stall = []string{"decode-1=2s+0s"} }},
		{"ID=AFTER", func(s *simulated.Config) { s.Die = []string{"decode-1=soon"} }},
		{"ID=AFTER", func(s *simulated.Config) { s.Die = []string{"decode-1=-1s"} }},
	} {
		config := defaults()
		c.set(&config)
		err := config.Validate()
		if (c.says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: error %v, which should speak of %q", config, err, c.says)
		}
	}
}

func FuzzTroubleFlags(f *testing.F) {
	f.Add("decode-1=3", "*=0.5", "decode-1=1s+1s", "x=1m", "3MB/s")
	f.Fuzz(func(t *testing.T, slow, fail, stall, die, transfer string) {
		s := defaults()
		s.Slow, s.Fail, s.Stall, s.Die, s.Transfer = []string{slow}, []string{fail}, []string{stall}, []string{die}, transfer
		if s.Validate() != nil {
			return
		}
		for _, text := range []string{slow, fail, stall, die} {
			if !strings.Contains(text, "=") {
				t.Fatalf("%q passed", text)
			}
		}
	})
}
