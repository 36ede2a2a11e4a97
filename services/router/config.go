package router

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/services/router/internal/fleet"
)

// Config is the router's configuration. DefaultConfig works.
type Config struct {
	// QueueLimit is the most requests that wait for workers.
	QueueLimit int
	// MaxQueueWait is how long a request waits for workers at most, and how long it
	// may then wait in the queue of one.
	MaxQueueWait time.Duration
	// TenantMaxRequests is the most requests of one tenant, waiting and running. All
	// clients of the HTTP API are one tenant.
	TenantMaxRequests int
	// DisaggregateMinTokens: in mode auto, prompts with fewer uncached tokens are
	// computed on the decode worker. 64 tokens are two blocks: such a prompt is one
	// chunk that fits beside a decode step, while a transfer costs two more round
	// trips and a reservation.
	DisaggregateMinTokens int
	// MaxAttempts is the most tries of a request in which workers failed.
	MaxAttempts int
	// NoWorkerGrace is how long a request waits when there is no worker.
	NoWorkerGrace time.Duration
	// WorkerKeep is how long a worker that etcd lost is kept while its connection
	// works. etcd may be away for long, so it is long: a dead worker's connection
	// breaks at once.
	WorkerKeep time.Duration
	// LoadStale is the age from which on load reports are not used.
	LoadStale time.Duration
	// TransferBytesPerSecond is what a KV transfer is taken to move.
	TransferBytesPerSecond float64
	// WorkerSilence is how long a worker may take from one token to the next before
	// its requests go to another one: far longer than any step, which computes one
	// chunk of a prompt beside the running sequences.
	WorkerSilence time.Duration
	// PromptSilence is the same while a whole prompt is computed, about which a
	// worker says nothing in between, and while the rest of its KV is sent. It does
	// not depend on the prompt: it has to suffice for the longest. While a worker
	// keeps a request in its own queue, MaxQueueWait counts instead.
	PromptSilence time.Duration
	// MaxRequestTime bounds every request; its client may set an earlier deadline.
	MaxRequestTime time.Duration
	// ConnectTimeout is how long one address of a worker is tried.
	ConnectTimeout time.Duration
	// KeptLogs is the most finished requests that can still be resumed.
	KeptLogs int
	// GenerationConfig says where the sampling that a request leaves out comes
	// from: GenerationConfigModel or GenerationConfigNone. Its flag has no prefix.
	GenerationConfig string
	// Budget is how long requests may take. Its flags are its own.
	Budget BudgetConfig
}

// DefaultConfig is the configuration that nobody changed.
func DefaultConfig() Config {
	return Config{
		QueueLimit:             1024,
		MaxQueueWait:           30 * time.Second,
		TenantMaxRequests:      256,
		DisaggregateMinTokens:  64,
		MaxAttempts:            3,
		NoWorkerGrace:          time.Second,
		WorkerKeep:             5 * time.Minute,
		LoadStale:              3 * time.Second,
		TransferBytesPerSecond: 1e9,
		WorkerSilence:          10 * time.Second,
		PromptSilence:          time.Minute,
		MaxRequestTime:         10 * time.Minute,
		ConnectTimeout:         time.Second,
		KeptLogs:               1024,
		GenerationConfig:       GenerationConfigModel,
		Budget:                 DefaultBudget(),
	}
}

// RegisterFlags adds the flags, each name after prefix, with c's present values
// as defaults. A zero Config gets the defaults of DefaultConfig.
func (c *Config) RegisterFlags(fs *pflag.FlagSet, prefix string) {
	if *c == (Config{}) {
		*c = DefaultConfig()
	}
	fs.IntVar(&c.QueueLimit, prefix+"queue-limit", c.QueueLimit, "most requests that wait for workers")
	fs.DurationVar(&c.MaxQueueWait, prefix+"max-queue-wait", c.MaxQueueWait, "how long a request waits for workers at most, and then in a worker's own queue")
	fs.IntVar(&c.TenantMaxRequests, prefix+"tenant-max-requests", c.TenantMaxRequests, "most requests of one tenant at a time")
	fs.IntVar(&c.DisaggregateMinTokens, prefix+"disaggregate-min-tokens", c.DisaggregateMinTokens, "in mode auto, prompts with fewer uncached tokens are computed on the decode worker")
	fs.IntVar(&c.MaxAttempts, prefix+"max-attempts", c.MaxAttempts, "most tries of a request when workers fail")
	fs.DurationVar(&c.NoWorkerGrace, prefix+"no-worker-grace", c.NoWorkerGrace, "how long a request waits when there is no worker")
	fs.DurationVar(&c.WorkerKeep, prefix+"worker-keep", c.WorkerKeep, "how long a worker that etcd lost is kept while its connection works")
	fs.DurationVar(&c.LoadStale, prefix+"load-stale", c.LoadStale, "age from which on load reports are not used")
	fs.Float64Var(&c.TransferBytesPerSecond, prefix+"transfer-bytes-per-second", c.TransferBytesPerSecond, "what a KV transfer is taken to move")
	fs.DurationVar(&c.WorkerSilence, prefix+"worker-silence", c.WorkerSilence, "how long a worker may take from token to token before its requests go to another")
	fs.DurationVar(&c.PromptSilence, prefix+"prompt-silence", c.PromptSilence, "how long a worker may take to compute a prompt before its request goes to another")
	fs.DurationVar(&c.MaxRequestTime, prefix+"max-request-time", c.MaxRequestTime, "longest time of a request; its own deadline may be earlier")
	fs.DurationVar(&c.ConnectTimeout, prefix+"connect-timeout", c.ConnectTimeout, "how long one address of a worker is tried")
	fs.StringVar(&c.GenerationConfig, "generation-config", c.GenerationConfig, "where the sampling comes from that a request leaves out: model, for the model's generation_config.json, or none")
	fs.IntVar(&c.KeptLogs, prefix+"kept-logs", c.KeptLogs, "most finished requests that can still be resumed")
}

// Validate checks ranges; its error names every field that is wrong.
func (c Config) Validate() error {
	var errs []error
	positive := func(name string, ok bool, value any) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s is %v: it has to be above 0", name, value))
		}
	}
	positive("queue-limit", c.QueueLimit > 0, c.QueueLimit)
	positive("max-queue-wait", c.MaxQueueWait > 0, c.MaxQueueWait)
	positive("tenant-max-requests", c.TenantMaxRequests > 0, c.TenantMaxRequests)
	positive("max-attempts", c.MaxAttempts > 0, c.MaxAttempts)
	positive("no-worker-grace", c.NoWorkerGrace > 0, c.NoWorkerGrace)
	positive("worker-keep", c.WorkerKeep > 0, c.WorkerKeep)
	positive("load-stale", c.LoadStale > 0, c.LoadStale)
	positive("transfer-bytes-per-second", c.TransferBytesPerSecond > 0, c.TransferBytesPerSecond)
	positive("worker-silence", c.WorkerSilence > 0, c.WorkerSilence)
	positive("prompt-silence", c.PromptSilence > 0, c.PromptSilence)
	positive("max-request-time", c.MaxRequestTime > 0, c.MaxRequestTime)
	positive("connect-timeout", c.ConnectTimeout > 0, c.ConnectTimeout)
	positive("kept-logs", c.KeptLogs > 0, c.KeptLogs)
	if err := c.ValidateGenerationConfig(); err != nil {
		errs = append(errs, err)
	}
	if c.DisaggregateMinTokens < 0 {
		errs = append(errs, fmt.Errorf("disaggregate-min-tokens is %d: it may not be negative", c.DisaggregateMinTokens))
	}
	if err := c.Budget.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// ValidateGenerationConfig checks the one field whose flag has no prefix.
func (c Config) ValidateGenerationConfig() error {
	if c.GenerationConfig != GenerationConfigModel && c.GenerationConfig != GenerationConfigNone {
		return fmt.Errorf("generation-config is %q: it has to be %s or %s", c.GenerationConfig, GenerationConfigModel, GenerationConfigNone)
	}
	return nil
}

// fleet is the policy's part of the configuration, with what is not a flag.
func (c Config) fleet() fleet.Config {
	return fleet.Config{
		QueueLimit:             c.QueueLimit,
		MaxQueueWait:           c.MaxQueueWait,
		TenantMaxRequests:      c.TenantMaxRequests,
		DisaggregateMinTokens:  c.DisaggregateMinTokens,
		NoWorkerGrace:          c.NoWorkerGrace,
		WorkerKeep:             c.WorkerKeep,
		LoadStale:              c.LoadStale,
		ReportLag:              100 * time.Millisecond,
		TransferBytesPerSecond: c.TransferBytesPerSecond,
		NearBest:               0.1,
		TPOTHorizonTokens:      64,
		IndexBlocks:            1 << 20,
	}
}
