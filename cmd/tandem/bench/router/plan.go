// Package router measures a router beside workers that compute nothing: what a decision
// costs, how many tokens a second of its processor relays, and by how much it delays them.
//
// The command line imports it. Measure starts the router as a process of its own, the workers
// and the clients in this one, where one clock times what a worker sends and a client gets;
// it ends all of them before it returns.
package router

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/bounds"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/processes"
)

// Plan says what is measured.
type Plan struct {
	// Workers are simulated, half of them for prefill and half for decode.
	Workers int
	// Streams run at a time, over so many Connections; 0: each over one of its own.
	Streams, Connections int
	// PrefixBlocks are in the router's prefix index, spread over the workers.
	PrefixBlocks int
	// OpenAI: clients read server-sent events instead of gRPC.
	OpenAI bool
	// TLS: connections of the router to clients and workers are encrypted, and workers and router
	// know each other by certificates.
	TLS bool
	// Auth: the router asks clients for an API key, and holds its tenant to limits, which are far
	// away. It needs TLS, by which the router knows the operator.
	Auth bool
	// ClientProbes: clients of gRPC send a ping for each message, as grpc-go's do by default.
	// The router answers each, with a write to the connection.
	ClientProbes bool
	// Tokens in an answer and in the prompt of a stream, and the time between two tokens.
	Tokens, PromptTokens int
	Gap                  time.Duration
	// Duration of the measurement, after a second or two in which the streams begin.
	Duration time.Duration
	// Decisions to time, with prompts of decisionTokens.
	Decisions int
	// Mesh is how the router is started: its Binary and Arguments, "--model" among them.
	Mesh processes.Plan
}

const (
	// decisionTokens is the length of the prompts of timed decisions.
	decisionTokens = 2048
	// MaxPrefixBlocks is as many as a router indexes.
	MaxPrefixBlocks = 1 << 20
	blockTokens     = 32
)

// Validate says which flag is out of range.
func (p Plan) Validate() error {
	switch {
	case p.Workers < 2 || p.Workers > 1024:
		return fmt.Errorf("--workers: %d is outside 2, one for prefill and one for decode, to 1024", p.Workers)
	case p.OpenAI && p.Connections > 0 && p.Connections < p.Streams:
		return errors.New("--connections: a connection of HTTP/1.1 has one stream at a time: leave it out with --openai")
	case p.Auth && !p.TLS:
		return errors.New("--auth: keys cross the network in the clear without --tls: pass it, too")
	case p.Gap < time.Millisecond || p.Gap > time.Minute:
		return fmt.Errorf("--itl: %v is outside 1ms to 1m", p.Gap)
	case p.Duration < 100*time.Millisecond || p.Duration > time.Hour:
		return fmt.Errorf("--duration: %v is outside 100ms to 1h", p.Duration)
	}
	return cmp.Or(
		bounds.Within("--streams", p.Streams, 1, 16384),
		bounds.Within("--connections", p.Connections, 0, p.Streams, ", the number of streams"),
		bounds.Within("--prefix-blocks", p.PrefixBlocks, 0, MaxPrefixBlocks, ", which is as many as a router indexes"),
		bounds.Within("--tokens", p.Tokens, 2, 1<<20),
		bounds.Within("--prompt", p.PromptTokens, 1, 1<<20),
		bounds.Within("--decisions", p.Decisions, 100, 1_000_000),
	)
}

// FitsContext says whether a stream has room in the context of a model.
func (p Plan) FitsContext(name string, contextTokens int) error {
	if p.PromptTokens+p.Tokens > contextTokens {
		return fmt.Errorf("--tokens: a prompt of %d tokens and an answer of %d exceed the %d of %s's context: pass less", p.PromptTokens, p.Tokens, contextTokens, name)
	}
	return nil
}

// connections is how many there are.
func (p Plan) connections() int {
	if p.Connections > 0 {
		return p.Connections
	}
	return p.Streams
}

// planned is how many tokens a second the workers send in all, at most.
func (p Plan) planned() float64 { return float64(p.Streams) / p.Gap.Seconds() }
