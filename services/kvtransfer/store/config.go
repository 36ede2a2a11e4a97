package store

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/services/kvtransfer"
)

// Config of a block store.
type Config struct {
	// MemoryBytes is the memory for blocks and for what is known of them.
	MemoryBytes int64
	// LayoutIdle is how long blocks of one layout are kept unused when others come.
	LayoutIdle time.Duration
	// TransferLease is how long room is reserved without a sign of life.
	TransferLease time.Duration
	// TransferCreditBytes is how much KV may be on its way on one stream: a worker has
	// one, or several. kvtransfer.CheckCreditBytes bounds it; slices that are larger get
	// one of theirs.
	TransferCreditBytes int
	// MaxPuts and MaxFetches are the most transfers at a time in either direction.
	MaxPuts, MaxFetches int
	// FetchTimeout bounds a fetch whose caller gave it no deadline.
	FetchTimeout time.Duration
}

// RegisterFlags adds the flags, with defaults that work, but for MemoryBytes.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&c.LayoutIdle, "store-layout-idle", 10*time.Minute, "how long a block store keeps blocks of one layout that nobody uses when a worker offers blocks of another")
	fs.DurationVar(&c.TransferLease, "store-transfer-lease", 10*time.Second, "how long a block store reserves room without a sign of life from its sender")
	fs.IntVar(&c.TransferCreditBytes, "store-transfer-credit-bytes", kvtransfer.DefaultCreditBytes, "most KV bytes that may be on their way to a block store on one connection of a worker (--kv-connections)")
	fs.IntVar(&c.MaxPuts, "store-max-puts", 256, "most transfers into a block store at a time")
	fs.IntVar(&c.MaxFetches, "store-max-fetches", 64, "most transfers out of a block store at a time")
	fs.DurationVar(&c.FetchTimeout, "store-fetch-timeout", 30*time.Second, "how long a transfer out of a block store may take if its caller does not say")
}

// Validate checks ranges.
func (c *Config) Validate() error {
	switch {
	case c.MemoryBytes < LeastMemoryBytes:
		return fmt.Errorf("store-memory: %d bytes hold no block of any model: %d bytes are the least, and a block of 32 tokens takes 64 times layers × KV heads × head size × bytes of an element",
			c.MemoryBytes, LeastMemoryBytes)
	case c.LayoutIdle < 0:
		return fmt.Errorf("store-layout-idle: %v is negative", c.LayoutIdle)
	case c.TransferLease < time.Second:
		return fmt.Errorf("store-transfer-lease: %v is under 1s", c.TransferLease)
	case c.MaxPuts <= 0 || c.MaxPuts > maxTransfers:
		return fmt.Errorf("store-max-puts: %d is outside 1 to %d", c.MaxPuts, maxTransfers)
	case c.MaxFetches <= 0 || c.MaxFetches > maxTransfers:
		return fmt.Errorf("store-max-fetches: %d is outside 1 to %d", c.MaxFetches, maxTransfers)
	case c.FetchTimeout <= 0:
		return fmt.Errorf("store-fetch-timeout: %v is not above 0", c.FetchTimeout)
	}
	if err := kvtransfer.CheckCreditBytes(c.TransferCreditBytes); err != nil {
		return fmt.Errorf("store-transfer-credit-bytes: %w", err)
	}
	return nil
}

// LeastMemoryBytes is the least Config.MemoryBytes: what the smallest block takes that
// any layout describes, one byte of one layer of one token. How large the blocks of a
// model are, a store hears with the first offer.
const LeastMemoryBytes = 1 + tokenBytes + bookBytes

// maxTransfers bounds the limits on transfers.
const maxTransfers = 1 << 16
