package transfer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/bounds"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/model"
)

// Transports that can be measured.
const (
	TCP  = "tcp"
	Unix = "unix"
	Shm  = "shm" // the receiver's pages, mapped; messages over a Unix socket
)

// Figures that can be measured.
const (
	// FigureRate is payload bytes a second over the plan's transport, beside plain
	// copies.
	FigureRate = "rate"
	// FigureUnix is the same over a Unix socket, beside TCP.
	FigureUnix = "unix"
	// FigureTLS is the same over TCP with TLS, beside what TCP and AES allow.
	FigureTLS = "tls"
	// FigureAllocations counts allocations for each chunk in Tandem's own code.
	FigureAllocations = "allocations"
	// FigureBehind is a transfer of one block behind large ones.
	FigureBehind = "behind"
	// FigureExposed is what computing does not hide of a transfer.
	FigureExposed = "exposed"
	// FigureKill is when blocks are free after one side was killed.
	FigureKill = "kill"
)

// Figures are all of them, in the order in which they are measured.
func Figures() []string {
	return []string{FigureRate, FigureUnix, FigureTLS, FigureAllocations, FigureBehind, FigureExposed, FigureKill}
}

// Plan is what to measure.
type Plan struct {
	// Bytes is the payload of one round of a rate.
	Bytes     int64  `json:"bytes"`
	Transport string `json:"transport"`
	// Connections is how many join a sender to a receiver, 1 to maxConnections.
	Connections int    `json:"connections"`
	Preset      string `json:"preset"`
	BlockTokens int    `json:"block_tokens"`
	// PromptTokens is the length of the prompts whose KV one transfer moves.
	PromptTokens int `json:"prompt_tokens"`
	// Rounds is how often each rate is measured, in turns, and how often every other
	// time: Samples times.
	Rounds  int `json:"rounds"`
	Samples int `json:"samples"`
	// Large is how many large transfers the one of FigureBehind is behind.
	Large int `json:"large"`
	// Lease is how long a receiver holds blocks for a sender that is silent.
	Lease time.Duration `json:"lease_ns"`
	// Only are the figures to measure; empty: all.
	Only []string `json:"only,omitempty"`
}

// maxConnections is the largest number of connections from one sender to one receiver.
const maxConnections = 8

// maxBytes bounds a round: a slow machine takes minutes for it.
const maxBytes = 1 << 40

// Validate checks the plan; the error names the flag and says what to do.
func (p Plan) Validate() error {
	switch {
	case p.Transport != TCP && p.Transport != Unix && p.Transport != Shm:
		return fmt.Errorf("--transport: %q is neither %s nor %s nor %s", p.Transport, TCP, Unix, Shm)
	case p.Lease < 100*time.Millisecond || p.Lease > time.Minute:
		return fmt.Errorf("--lease: %v is outside 100ms to 1m", p.Lease)
	}
	if err := cmp.Or(
		bounds.Within("--connections", p.Connections, 1, maxConnections),
		bounds.Within("--block-tokens", p.BlockTokens, 1, 256),
		bounds.Within("--prompt", p.PromptTokens, 1, 1<<17),
		bounds.Within("--rounds", p.Rounds, 2, 1000, ": one round alone shows no spread"),
		bounds.Within("--samples", p.Samples, 1, 10_000),
		bounds.Within("--large", p.Large, 1, 1000),
	); err != nil {
		return err
	}
	layout, err := p.Layout()
	if err != nil {
		return err
	}
	if least := int64(p.blocks() * layout.PageBytes()); p.Bytes < least || p.Bytes > maxBytes {
		return fmt.Errorf("--bytes: %d is outside %d, the KV of one prompt, to %d", p.Bytes, least, int64(maxBytes))
	}
	for _, name := range p.Only {
		if !slices.Contains(Figures(), name) {
			return fmt.Errorf("--only: no figure is called %q: pass some of %s", name, strings.Join(Figures(), ", "))
		}
	}
	return nil
}

func (p Plan) wants(figure string) bool { return len(p.Only) == 0 || slices.Contains(p.Only, figure) }

// blocks is how many a prompt fills.
func (p Plan) blocks() int { return kvcache.BlocksFor(p.PromptTokens, p.BlockTokens) }

// Layout is that of the preset's pages in the CPU engine: keys and values in bf16.
func (p Plan) Layout() (kvcache.Layout, error) {
	shape, err := model.Preset(p.Preset)
	if err != nil {
		return kvcache.Layout{}, fmt.Errorf("--preset: %w", err)
	}
	const keysAndValues, elementBytes = 2, 2
	return kvcache.Layout{
		ModelDigest: "bench/" + shape.Name, ArithmeticClass: "bench/1", Layers: shape.Layers, KVHeads: shape.KVHeads,
		HeadSize: shape.HeadSize, ElementType: "bf16", BlockTokens: p.BlockTokens, Order: "k2t-t2v/1",
		SliceBytes: keysAndValues * p.BlockTokens * shape.KVHeads * shape.HeadSize * elementBytes,
	}, nil
}
