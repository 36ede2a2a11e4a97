package simulated

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// RegisterFlags adds the flags of what operators choose, with defaults that work.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.Float64Var(&c.StepTime.BaseMs, "simulated-base-ms", 5, "simulated engine: base time of each step, in milliseconds")
	fs.Float64Var(&c.StepTime.PerTokenMs, "simulated-per-token-ms", 0.05, "simulated engine: time added for each token computed, in milliseconds")
	fs.Float64Var(&c.StepTime.PerContextTokenMs, "simulated-per-context-token-ms", 0.0001, "simulated engine: time added for each token of context of a sequence that decodes, in milliseconds")
	fs.StringVar(&c.Transfer, "simulated-transfer", "", "simulated engine: bandwidth of KV into a worker, in a real engine's bytes, such as 10GB/s (default: as fast as the connection)")
	fs.BoolVar(&c.RealPages, "simulated-real-pages", false, "simulated engine: send as many bytes of KV as a real engine")
	fs.BoolVar(&c.ShareDevice, "simulated-share-device", false, "simulated engine: let this process's workers take turns, as those of the CPU engine do")
	fs.Float64Var(&c.Jitter, "simulated-jitter", -1, "simulated engine: relative spread of step times, such as 0.1 (-1: as in the profile)")
	fs.Float64Var(&c.Acceptance, "simulated-acceptance", 0, "simulated engine: share of draft tokens of --speculate that are right, such as 0.7 (0: texts do not repeat, so there is hardly anything to draft)")
	fs.Uint64Var(&c.Seed, "simulated-seed", 0, "simulated engine: random seed of jitter and failures")
	fs.StringSliceVar(&c.Slow, "simulated-slow", nil, "simulated engine: slow a worker down, as ID=FACTOR, such as decode-2=3; * is every worker")
	fs.StringSliceVar(&c.Fail, "simulated-fail", nil, "simulated engine: fail a worker's steps at random, as ID=PROBABILITY, such as decode-2=0.01")
	fs.StringSliceVar(&c.Stall, "simulated-stall", nil, "simulated engine: stall a worker once, as ID=AT+FOR, such as prefill-1=30s+2s, counted from its start")
	fs.StringSliceVar(&c.Die, "simulated-die", nil, "simulated engine: fail all of a worker's steps from a time on, as ID=AFTER, such as decode-1=1m")
}

// maxStepMs bounds each term of StepTime.
const maxStepMs = 1e6

// Validate checks what the flags set.
func (c *Config) Validate() error {
	for _, f := range []struct {
		flag string
		ms   float64
	}{{"base", c.StepTime.BaseMs}, {"per-token", c.StepTime.PerTokenMs}, {"per-context-token", c.StepTime.PerContextTokenMs}} {
		if !(f.ms >= 0 && f.ms <= maxStepMs) { // so that NaN is refused too
			return fmt.Errorf("--simulated-%s-ms: %v is outside 0 to %v", f.flag, f.ms, maxStepMs)
		}
	}
	if !(c.Jitter == -1 || c.Jitter >= 0 && c.Jitter <= latency.MaxJitter) { // NaN too
		return fmt.Errorf("--simulated-jitter: %v is outside 0 to %d", c.Jitter, latency.MaxJitter)
	}
	if err := checkAcceptance(c.Acceptance); err != nil {
		return fmt.Errorf("--simulated-acceptance: %w", err)
	}
	if _, err := c.bandwidth(); err != nil {
		return err
	}
	_, err := c.trouble("")
	return err
}

// For is c for the worker of an id: what was asked to go wrong with it, the link and the
// pages that it has. Spec, Profile and BlockTokens are set before.
func (c Config) For(id string) (_ Config, err error) {
	if c.Trouble, err = c.trouble(id); err != nil {
		return c, err
	}
	if c.Profile != nil && c.Jitter < 0 {
		c.Trouble.Jitter = c.Profile.Jitter
	}
	if c.RealPages {
		// Records need 8 bytes a token, which the KV of a tiny model has not.
		c.SliceBytes = max(SliceBytes(c.Spec, c.BlockTokens), leastSliceBytes(c.BlockTokens))
	}
	if hold := c.Hold; hold != nil {
		c.Wait = func(ctx context.Context, d time.Duration) error {
			if err := hold(ctx, id); err != nil {
				return err
			}
			return wait(ctx, d)
		}
	}
	c.LinkBytesPerSecond, err = c.bandwidth()
	return c, err
}

// everyWorker is the id that stands for all.
const everyWorker = "*"

// maxTroubleTime bounds the times of stalls and deaths.
const maxTroubleTime = 30 * 24 * time.Hour

// trouble is what was asked to go wrong with a worker.
func (c *Config) trouble(id string) (Trouble, error) {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(id)) // never fails
	t := Trouble{Seed: c.Seed ^ hash.Sum64(), Jitter: max(c.Jitter, 0)}
	for _, option := range []struct {
		flag, form string
		list       []string
		set        func(value string) error
	}{
		{"slow", "ID=FACTOR, such as decode-2=3", c.Slow, func(value string) (err error) {
			t.Slow, err = strconv.ParseFloat(value, 64)
			if err == nil && t.Slow == 0 { // which would mean that none was asked for
				err = errors.New("the factor is 0")
			}
			return err
		}},
		{"fail", "ID=PROBABILITY, such as decode-2=0.01", c.Fail, func(value string) (err error) {
			t.FailProbability, err = strconv.ParseFloat(value, 64)
			return err
		}},
		{"stall", "ID=AT+FOR, such as prefill-1=30s+2s", c.Stall, func(value string) error {
			at, length, found := strings.Cut(value, "+")
			if !found {
				return errors.New("the + is missing")
			}
			var stall Stall
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
		{"die", "ID=AFTER, such as decode-1=1m", c.Die, func(value string) (err error) {
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
func (c *Config) bandwidth() (float64, error) {
	if c.Transfer == "" {
		return 0, nil
	}
	rate, err := bytesize.ParseRate(c.Transfer)
	if err != nil {
		return 0, fmt.Errorf("--simulated-transfer: %w", err)
	}
	return rate, nil
}

// CheckWorkers refuses trouble for workers that this process does not have: it
// would silently not happen.
func (c *Config) CheckWorkers(workers []string) error {
	known := make(map[string]bool, len(workers))
	for _, id := range workers {
		known[id] = true
	}
	for _, option := range []struct {
		flag string
		list []string
	}{{"slow", c.Slow}, {"fail", c.Fail}, {"stall", c.Stall}, {"die", c.Die}} {
		for _, text := range option.list {
			if name, _, _ := strings.Cut(text, "="); name != everyWorker && !known[name] {
				return fmt.Errorf("--simulated-%s: %q: no worker of this process is called %s", option.flag, text, name)
			}
		}
	}
	return nil
}
