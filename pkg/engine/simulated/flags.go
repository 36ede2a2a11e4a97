package mesh

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// SimulatedOptions say how a simulated engine differs from a perfect one.
type SimulatedOptions struct {
	// Transfer is the bandwidth at which KV arrives at a worker, such as 10GB/s;
	// empty: that of the real connection alone.
	Transfer string
	// RealPages makes pages as large as a real engine's, so that transfers send as
	// many bytes. Otherwise they hold records of 8 bytes a token and layer.
	RealPages bool
	// ShareDevice lets the workers of a process take turns, as CPU engines do.
	ShareDevice bool
	// Jitter is the spread of step times; below 0: the profile's.
	Jitter float64
	// Seed of what is drawn.
	Seed uint64
	// Slow, Fail, Stall and Die are troubles of single workers: ID=FACTOR,
	// ID=PROBABILITY, ID=AT+FOR and ID=AT. The ID * is every worker.
	Slow, Fail, Stall, Die []string
}

func (s *SimulatedOptions) registerFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Transfer, "simulated-transfer", "", "simulated engine: bandwidth at which KV arrives at a worker, counted in a real engine's bytes, such as 10GB/s (default: as fast as the connection)")
	fs.BoolVar(&s.RealPages, "simulated-real-pages", false, "simulated engine: send as many bytes of KV as a real engine does")
	fs.BoolVar(&s.ShareDevice, "simulated-share-device", false, "simulated engine: the workers of this process take turns, as those of the CPU engine do")
	fs.Float64Var(&s.Jitter, "simulated-jitter", -1, "simulated engine: spread of step times, such as 0.1 (-1: as in the profile)")
	fs.Uint64Var(&s.Seed, "simulated-seed", 0, "simulated engine: seed of jitter and failures")
	fs.StringSliceVar(&s.Slow, "simulated-slow", nil, "simulated engine: ID=FACTOR, a worker that takes so many times as long, such as decode-2=3; * is every worker")
	fs.StringSliceVar(&s.Fail, "simulated-fail", nil, "simulated engine: ID=PROBABILITY of each step to fail")
	fs.StringSliceVar(&s.Stall, "simulated-stall", nil, "simulated engine: ID=AT+FOR, a worker that stands still for a while, such as prefill-1=30s+2s after its start")
	fs.StringSliceVar(&s.Die, "simulated-die", nil, "simulated engine: ID=AFTER, a worker whose steps fail from then on, such as decode-1=1m")
}

// everyWorker is the id that stands for all.
const everyWorker = "*"

// maxTroubleTime bounds the times of stalls and deaths.
const maxTroubleTime = 30 * 24 * time.Hour

// trouble is what was asked to go wrong with a worker.
func (s *SimulatedOptions) trouble(id string) (simulated.Trouble, error) {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(id)) // never fails
	t := simulated.Trouble{Seed: s.Seed ^ hash.Sum64(), Jitter: max(s.Jitter, 0)}
	for _, option := range []struct {
		flag, form string
		list       []string
		set        func(value string) error
	}{
		{"slow", "ID=FACTOR, such as decode-2=3", s.Slow, func(value string) (err error) {
			t.Slow, err = strconv.ParseFloat(value, 64)
			if err == nil && t.Slow == 0 { // which would mean that none was asked for
				err = errors.New("the factor is 0")
			}
			return err
		}},
		{"fail", "ID=PROBABILITY, such as decode-2=0.01", s.Fail, func(value string) (err error) {
			t.FailProbability, err = strconv.ParseFloat(value, 64)
			return err
		}},
		{"stall", "ID=AT+FOR, such as prefill-1=30s+2s", s.Stall, func(value string) error {
			at, length, found := strings.Cut(value, "+")
			if !found {
				return errors.New("there is no +")
			}
			var stall simulated.Stall
			var err error
			if stall.At, err = troubleTime(at); err != nil {
				return err
			}
			if stall.For, err = troubleTime(length); err != nil {
				return err
			}
			t.Stalls = append(t.Stalls, stall)
			return nil
		}},
		{"die", "ID=AFTER, such as decode-1=1m", s.Die, func(value string) (err error) {
			t.DiesAt, err = troubleTime(value)
			t.Dies = true
			return err
		}},
	} {
		for _, text := range option.list {
			name, value, found := strings.Cut(text, "=")
			if !found || name == "" {
				return t, fmt.Errorf("--simulated-%s: %q is not of the form %s", option.flag, text, option.form)
			}
			before := t
			err := option.set(value)
			if err == nil {
				err = t.Validate()
			}
			if err != nil {
				return t, fmt.Errorf("--simulated-%s: %q: %w: write %s", option.flag, text, err, option.form)
			}
			if name != id && name != everyWorker {
				t = before
			}
		}
	}
	return t, nil
}

func troubleTime(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err == nil && (d < 0 || d > maxTroubleTime) {
		err = fmt.Errorf("%v is outside 0 to %v", d, maxTroubleTime)
	}
	return d, err
}

// bandwidth is Transfer in bytes a second; 0: not limited.
func (s *SimulatedOptions) bandwidth() (float64, error) {
	if s.Transfer == "" {
		return 0, nil
	}
	var size ByteSize
	number, found := strings.CutSuffix(s.Transfer, "/s")
	if !found || number == auto || size.Set(number) != nil {
		return 0, fmt.Errorf("--simulated-transfer: %q is not a bandwidth: write 10GB/s or 500MB/s", s.Transfer)
	}
	return float64(size), nil
}

// validate checks everything but the profile, which is read with the model.
func (s *SimulatedOptions) validate() error {
	if !(s.Jitter == -1 || s.Jitter >= 0 && s.Jitter <= latency.MaxJitter) { // NaN too
		return fmt.Errorf("--simulated-jitter: %v is outside 0 to %d", s.Jitter, latency.MaxJitter)
	}
	if _, err := s.bandwidth(); err != nil {
		return err
	}
	_, err := s.trouble("")
	return err
}

// checkTroubled refuses trouble for workers that this process does not have: it
// would silently not happen.
func (s *SimulatedOptions) checkTroubled(workers []string) error {
	known := make(map[string]bool, len(workers))
	for _, id := range workers {
		known[id] = true
	}
	for _, option := range []struct {
		flag string
		list []string
	}{{"slow", s.Slow}, {"fail", s.Fail}, {"stall", s.Stall}, {"die", s.Die}} {
		for _, text := range option.list {
			if name, _, _ := strings.Cut(text, "="); name != everyWorker && !known[name] {
				return fmt.Errorf("--simulated-%s: %q: no worker of this process is called %s", option.flag, text, name)
			}
		}
	}
	return nil
}

// readProfile reads the profile's file.
func readProfile(path string) (*latency.Profile, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--profile: %w", err)
	}
	defer file.Close()
	profile, err := latency.ReadProfile(file)
	if err != nil {
		return nil, fmt.Errorf("--profile: %s: %w", path, err)
	}
	return profile, nil
}
