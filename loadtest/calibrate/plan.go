// Package calibrate measures the load generator itself: a fake server with known
// latency runs in one process, the generator in another, each on a core of its own,
// and what the one reports is held against what the other sent.
//
// The command line imports it. Measure starts the two processes and waits for both;
// Serve and Load are what they run.
package calibrate

import (
	"errors"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/loadtest/fakeserver"
)

// Plan is one measurement: so many streams held for so long.
type Plan struct {
	// Streams is how many are held, on average: requests come as a Poisson process
	// whose rate is Streams divided by the time that one takes.
	Streams int `json:"streams"`
	// Duration is how long they are held, after the time that one stream takes, in
	// which their number rises.
	Duration time.Duration `json:"duration_ns"`
	// TokensPerStream is how many tokens each brings.
	TokensPerStream int `json:"tokens_per_stream"`
	// PromptTokens is how many each sends.
	PromptTokens int `json:"prompt_tokens"`
	// TTFT and ITL are what the fake server injects.
	TTFT fakeserver.Delay `json:"ttft"`
	ITL  fakeserver.Delay `json:"itl"`
	// Coalesce is how long the fake server may keep a token to send more together: it
	// costs less so, and real servers send the tokens of a step together.
	Coalesce time.Duration `json:"coalesce_ns"`
	// Connections is how many the streams are spread over; 0: the client's default.
	Connections int `json:"connections"`
	// HTTP: by OpenAI's completions, server-sent events, instead of gRPC.
	HTTP bool `json:"http,omitempty"`
	// Seed is where all chance comes from.
	Seed uint64 `json:"seed"`
}

// Validate checks the plan; the error says what to do.
func (p Plan) Validate() error {
	switch {
	case p.Streams < 1 || p.Streams > maxStreams:
		return fmt.Errorf("%d streams: give 1 to %d", p.Streams, maxStreams)
	case p.Duration < time.Second || p.Duration > time.Hour:
		return fmt.Errorf("a duration of %s: give 1s to 1h", p.Duration)
	case p.TokensPerStream < 2 || p.TokensPerStream > 10_000:
		return fmt.Errorf("%d tokens a stream: give 2 to 10000", p.TokensPerStream)
	case p.PromptTokens < 1 || p.PromptTokens > 100_000:
		return fmt.Errorf("%d tokens a prompt: give 1 to 100000", p.PromptTokens)
	case p.length() <= 0:
		return errors.New("TTFT and ITL are both 0: set at least one of them")
	case p.tokens() > maxTokens:
		return fmt.Errorf("%.0f tokens in all: give fewer streams or a shorter duration, for at most %d", p.tokens(), maxTokens)
	}
	return p.shape().Validate()
}

const (
	// maxStreams is the most streams of a plan.
	maxStreams = 100_000
	// maxTokens is the most tokens of a plan: each takes some 60 bytes.
	maxTokens = 50_000_000
)

// length is how long a stream takes on average.
func (p Plan) length() time.Duration {
	return p.TTFT.Mean + time.Duration(p.TokensPerStream-1)*p.ITL.Mean
}

// rate is how many requests come in a second.
func (p Plan) rate() float64 { return float64(p.Streams) / p.length().Seconds() }

// tokens is how many come in all.
func (p Plan) tokens() float64 {
	return p.rate() * (p.length() + p.Duration).Seconds() * float64(p.TokensPerStream)
}

func (p Plan) shape() fakeserver.Shape {
	return fakeserver.Shape{TTFT: p.TTFT, ITL: p.ITL, Coalesce: p.Coalesce, Seed: p.Seed}
}
