package kvtransfer

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/pkg/blockstore"
	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/memory"
)

// Config of a block store.
type Config struct {
	// Memory is for blocks and for what is known of them. bytesize.Auto: 4 GiB, or what
	// Fit makes of it.
	Memory bytesize.Size
	// LayoutIdle is how long blocks of one layout are kept unused when others come.
	LayoutIdle time.Duration
	// TransferLease is how long blocks are reserved without a sign of life.
	TransferLease time.Duration
	// TransferCreditBytes is how much KV may be on its way on one stream: a worker has
	// one, or several. kvtransfer.CheckCreditBytes bounds it; slices that are larger get
	// one of theirs.
	TransferCreditBytes int
	// MaxPuts and MaxFetches are the most transfers at a time in either direction.
	MaxPuts, MaxFetches int
}

// RegisterFlags adds the flags, with defaults that work.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.Var(&c.Memory, "store-memory", "memory of a block store, such as 16GiB; auto: 4GiB, or less if memory is short")
	fs.DurationVar(&c.LayoutIdle, "store-layout-idle", 10*time.Minute, "how long a block store keeps unused blocks of one layout when a worker offers blocks of another")
	fs.DurationVar(&c.TransferLease, "store-transfer-lease", 10*time.Second, "how long a reservation in a block store lives without a sign of life from its sender")
	fs.IntVar(&c.TransferCreditBytes, "store-transfer-credit-bytes", kvtransfer.DefaultCreditBytes, "maximum KV bytes in flight to a block store on one connection of a worker (--kv-connections)")
	fs.IntVar(&c.MaxPuts, "store-max-puts", blockstore.DefaultPuts, "maximum transfers into a block store at a time")
	fs.IntVar(&c.MaxFetches, "store-max-fetches", blockstore.DefaultFetches, "maximum transfers out of a block store at a time")
}

// Validate checks ranges.
func (c *Config) Validate() error {
	switch {
	case c.memoryBytes() < blockstore.LeastBlockBytes: // how large a model's are, the first offer says
		return fmt.Errorf("store-memory: %d bytes hold no block of any model: pass at least %d bytes; a block of 32 tokens takes 64 × layers × KV heads × head size × bytes of an element",
			c.Memory, blockstore.LeastBlockBytes)
	case c.LayoutIdle < 0:
		return fmt.Errorf("store-layout-idle: %v is negative", c.LayoutIdle)
	case c.TransferLease < time.Second:
		return fmt.Errorf("store-transfer-lease: %v is under 1s", c.TransferLease)
	case c.MaxPuts <= 0 || c.MaxPuts > maxTransfers:
		return fmt.Errorf("store-max-puts: %d is outside 1 to %d", c.MaxPuts, maxTransfers)
	case c.MaxFetches <= 0 || c.MaxFetches > maxTransfers:
		return fmt.Errorf("store-max-fetches: %d is outside 1 to %d", c.MaxFetches, maxTransfers)
	}
	if err := kvtransfer.CheckCreditBytes(c.TransferCreditBytes); err != nil {
		return fmt.Errorf("store-transfer-credit-bytes: %w", err)
	}
	return nil
}

// autoMemory is what bytesize.Auto stands for where there is enough memory.
const autoMemory bytesize.Size = 4 << 30

func (c *Config) memoryBytes() int64 { return int64(cmp.Or(c.Memory, autoMemory)) }

// Fit says what bytesize.Auto stands for, and refuses stores that do not fit in what
// memory is free. Pages take memory only when they are used, but a store that is full uses
// all.
func (c *Config) Fit(stores int, free memory.Left) error {
	each := (free.Bytes - memory.ProcessBytes) / int64(stores)
	if c.Memory == bytesize.Auto {
		// Half of what is left: other processes want some too.
		c.Memory = min(autoMemory, bytesize.Size(each/2))
	}
	if c.Memory <= 0 || int64(c.Memory) > each {
		return fmt.Errorf("store-memory: %s for each of %d block stores and %s for the rest of the process exceed what the process may use, %s (%s): pass %s or less",
			c.Memory.String(), stores, bytesize.Text(memory.ProcessBytes), bytesize.Text(free.Bytes), free.By, bytesize.Text(each))
	}
	return nil
}

// CheckLayout refuses memory for less than one block of what the workers compute: such a
// store would never hold anything.
func (c *Config) CheckLayout(layout kvcache.Layout) error {
	if least := blockstore.BlockBytes(layout); c.memoryBytes() < least {
		return fmt.Errorf("store-memory: %s does not hold one block of %d tokens of this model: pass %d bytes or more", c.Memory.String(), layout.BlockTokens, least)
	}
	return nil
}

// maxTransfers bounds the limits on transfers.
const maxTransfers = 1 << 16
