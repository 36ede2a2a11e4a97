// Package workloads draws traffic like recorded traffic, so that nobody has to download any:
// it reads the parameters of distributions, kept in docs/profiles, and writes traces that are drawn
// from them. Its tests fit these to public traces, and step times to published measurements.
//
// Package evidence imports it. It starts no goroutines and reads no clock.
package workloads

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"go.yaml.in/yaml/v3"
)

// FileName is the file of the fits, in docs/profiles.
const FileName = "workloads.yaml"

// File is all fits.
type File struct {
	// AzureConversation are the requests of AzureLLMInferenceTrace_conv.csv, and
	// AzureConversation2048 those of them that fit into OPT's context of 2048 tokens.
	AzureConversation     *Independent `yaml:"azure-conversation"`
	AzureConversation2048 *Independent `yaml:"azure-conversation-2048"`
	// MooncakeConversation are those of Mooncake's conversation_trace.jsonl.
	MooncakeConversation *Conversations `yaml:"mooncake-conversation"`
}

// Independent are requests that share nothing.
type Independent struct {
	// RatePerSecond is their mean rate.
	RatePerSecond float64 `yaml:"rate-per-second"`
	// Bins have an equal number of requests each, those with the shortest prompts first.
	Bins []Bin `yaml:"bins"`
}

// Bin is requests with prompts of similar length, in tokens.
type Bin struct {
	Prompt Quantiles `yaml:"prompt,flow"`
	Output Quantiles `yaml:"output,flow"`
}

// Conversations are requests of which some go on where others ended. The first block is the
// same in all.
type Conversations struct {
	// StartsPerSecond is how many a second begin a conversation.
	StartsPerSecond float64 `yaml:"starts-per-second"`
	// Next is the probability that a request is followed by another of its conversation: the
	// first of one, the second, and so on; the last holds for all that come after.
	Next []float64 `yaml:"next,flow"`
	// Seconds between the two.
	Seconds Quantiles `yaml:"seconds,flow"`
	// First is the length of the first prompt, Added how much a later one adds to the part that
	// it shares, Output that of an answer, in tokens.
	First  Quantiles `yaml:"first,flow"`
	Added  Quantiles `yaml:"added,flow"`
	Output Quantiles `yaml:"output,flow"`
	// Kept is the share of the blocks of the request before that a later one begins with.
	Kept Quantiles `yaml:"kept,flow"`
}

// Quantiles are the means of equal shares of the values, the least first. What is drawn lies between two on a
// line, and is not beyond the first and the last.
type Quantiles []float64

// At is the quantile of p, from 0 to 1.
func (q Quantiles) At(p float64) float64 {
	at := min(max(p*float64(len(q))-0.5, 0), float64(len(q)-1))
	i := min(int(at), max(len(q)-2, 0))
	if i+1 >= len(q) {
		return q[i]
	}
	return q[i] + (at-float64(i))*(q[i+1]-q[i])
}

func (q Quantiles) draw(random *rand.Rand) float64 { return q.At(random.Float64()) }

// valid: there is one at least, and none is below the one before it or below 0.
func (q Quantiles) valid() bool {
	last := 0.0
	for _, v := range q {
		if !(v >= last && v <= 1e9) {
			return false
		}
		last = v
	}
	return len(q) > 0
}

// Read reads and checks a file of fits.
func Read(path string) (*File, error) {
	text, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer text.Close()
	decoder := yaml.NewDecoder(text)
	decoder.KnownFields(true)
	f := new(File)
	if err := decoder.Decode(f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, s := range []*Independent{f.AzureConversation, f.AzureConversation2048} {
		if err := s.check(); err != nil {
			return nil, fmt.Errorf("%s: azure: %w", path, err)
		}
	}
	if err := f.MooncakeConversation.check(); err != nil {
		return nil, fmt.Errorf("%s: mooncake-conversation: %w", path, err)
	}
	return f, nil
}

func (s *Independent) check() error {
	switch {
	case s == nil || len(s.Bins) == 0:
		return errors.New("it has no bins: fit it again")
	case !(s.RatePerSecond > 0):
		return errors.New("rate-per-second must be above 0")
	}
	for i, b := range s.Bins {
		if !b.Prompt.valid() || !b.Output.valid() {
			return fmt.Errorf("bin %d: quantiles must rise from 0 on", i+1)
		}
	}
	return nil
}

func (c *Conversations) check() error {
	if c == nil || len(c.Next) == 0 || !(c.StartsPerSecond > 0) {
		return errors.New("next and starts-per-second are missing: fit it again")
	}
	for _, p := range c.Next {
		if !(p >= 0 && p < 1) {
			return fmt.Errorf("next: %v is no probability below 1", p)
		}
	}
	for _, q := range []Quantiles{c.Seconds, c.First, c.Added, c.Output, c.Kept} {
		if !q.valid() {
			return errors.New("quantiles must rise from 0 on")
		}
	}
	return nil
}
