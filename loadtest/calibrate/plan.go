// Package calibrate measures the load generator itself: a fake server with known latency
// runs in one process, the generator in another, each on its own core, and their reports
// are compared.
//
// The command line imports it. Measure starts both processes and waits for them; they run
// Serve and Load, whose goroutines end with them.
package calibrate

import (
	"errors"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/loadtest/fakeserver"
)

// Plan is one measurement: a number of streams held for a time.
type Plan struct {
	// Streams is the mean number held: requests are a Poisson process of rate Streams
	// divided by the time of one stream.
	Streams int `json:"streams"`
	// Duration is the measured time, after a ramp-up of one stream's time.
	Duration time.Duration `json:"duration_ns"`
	// TokensPerStream is the output length.
	TokensPerStream int `json:"tokens_per_stream"`
	// PromptTokens is the prompt length.
	PromptTokens int `json:"prompt_tokens"`
	// TTFT and ITL are injected by the fake server.
	TTFT fakeserver.Delay `json:"ttft"`
	ITL  fakeserver.Delay `json:"itl"`
	// Coalesce is how long the fake server may delay a token to batch messages. That
	// saves CPU time, and real servers send the tokens of a step together.
	Coalesce time.Duration `json:"coalesce_ns"`
	// Connections to spread the streams over. 0: the client's default.
	Connections int `json:"connections"`
	// HTTP selects OpenAI's completions over server-sent events instead of gRPC.
	HTTP bool `json:"http,omitempty"`
	// Seed of all randomness.
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
	// maxStreams per plan.
	maxStreams = 100_000
	// maxTokens per plan, at about 60 bytes each.
	maxTokens = 50_000_000
)

// length is the mean time of a stream.
func (p Plan) length() time.Duration {
	return p.TTFT.Mean + time.Duration(p.TokensPerStream-1)*p.ITL.Mean
}

// rate is requests per second.
func (p Plan) rate() float64 { return float64(p.Streams) / p.length().Seconds() }

// tokens is the expected total.
func (p Plan) tokens() float64 {
	return p.rate() * (p.length() + p.Duration).Seconds() * float64(p.TokensPerStream)
}

func (p Plan) shape() fakeserver.Shape {
	return fakeserver.Shape{TTFT: p.TTFT, ITL: p.ITL, Coalesce: p.Coalesce, Seed: p.Seed}
}
