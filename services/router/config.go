package router

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/latencybudget"
	"github.com/tandem-serving/tandem/services/router/preprocess"
	"github.com/tandem-serving/tandem/services/router/serving"
)

// Config is the router's configuration: how workers are chosen, how requests are served, and
// what follows. What is no flag of either is not read: the router sets it. DefaultConfig works.
type Config struct {
	policy
	answers
	// WorkerSilence is how long a worker may take from one token to the next before
	// its requests go to another one: far longer than any step, which computes one
	// chunk of a prompt beside the running sequences. It is the most: where there is
	// another worker, this one is suspected after tens of times what its own steps
	// take (pkg/routing, silence.go).
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
	// ReceiveMemory is what requests may take until they are answered, over gRPC and
	// over HTTP each, and ReceiveTimeout how long one may take to come.
	ReceiveMemory  bytesize.Size
	ReceiveTimeout time.Duration
	// UnreadTimeout is how long a client may read nothing of its answer. gRPC's connections
	// may hold as much as UnreadMemory beside it.
	UnreadTimeout time.Duration
	// MaxConnections is the most connections of clients, over gRPC and over HTTP each.
	MaxConnections int
	// GenerationConfig says where the sampling that a request leaves out comes
	// from: GenerationConfigModel or GenerationConfigNone. Its flag has no prefix.
	GenerationConfig string
	// Budget is how long requests may take. Its flags are its own.
	Budget latencybudget.Config
}

type (
	policy  = routing.Config
	answers = serving.Config
)

// DefaultConfig is the configuration that nobody changed.
func DefaultConfig() Config {
	var c Config
	c.RegisterFlags(pflag.NewFlagSet("", pflag.ContinueOnError), "")
	return c
}

// RegisterFlags adds the flags, each name after prefix, and with them the defaults, also of
// Budget, whose flags are its own.
func (c *Config) RegisterFlags(fs *pflag.FlagSet, prefix string) {
	c.KeptMemory, c.ReceiveMemory, c.UnreadMemory, c.UnreadRequest = 64<<20, 128<<20, 64<<20, 16<<20
	c.Budget = latencybudget.DefaultConfig()
	fs.IntVar(&c.QueueLimit, prefix+"queue-limit", 1024, "maximum requests that wait for workers")
	fs.DurationVar(&c.MaxQueueWait, prefix+"max-queue-wait", 30*time.Second, "maximum time that a request waits for workers, and then again in a worker's own queue")
	fs.IntVar(&c.TenantMaxRequests, prefix+"tenant-max-requests", 256, "maximum requests of one tenant at a time")
	// 64 tokens are two blocks: such a prompt is one chunk that fits beside a decode step,
	// while a transfer costs two more round trips and a reservation.
	fs.IntVar(&c.DisaggregateMinTokens, prefix+"disaggregate-min-tokens", 64, "in mode auto, compute prompts with fewer uncached tokens on the decode worker")
	fs.IntVar(&c.MaxAttempts, prefix+"max-attempts", 3, "maximum tries of a request if workers fail")
	fs.DurationVar(&c.NoWorkerGrace, prefix+"no-worker-grace", time.Second, "how long a request waits if no worker exists")
	fs.DurationVar(&c.WorkerKeep, prefix+"worker-keep", 30*time.Second, "how long to keep a worker that etcd no longer lists, while its connection works")
	fs.DurationVar(&c.VersionWait, prefix+"version-wait", 5*time.Second, "how long after a model's first worker appears its served version may still change, unless a request is sent before")
	fs.DurationVar(&c.LoadStale, prefix+"load-stale", 3*time.Second, "age at which load reports are ignored")
	fs.DurationVar(&c.ReportDoubt, prefix+"report-doubt", 500*time.Millisecond, "how long to believe load reports that say a worker is full before trying it with a request")
	fs.Float64Var(&c.TransferBytesPerSecond, prefix+"transfer-bytes-per-second", 1e9, "assumed bandwidth of a KV transfer, in bytes per second")
	fs.DurationVar(&c.WorkerSilence, prefix+"worker-silence", 10*time.Second, "longest gap between tokens before a worker's requests go to another; shorter if its steps are fast and another worker exists")
	fs.DurationVar(&c.PromptSilence, prefix+"prompt-silence", time.Minute, "longest time to compute a prompt before the request goes to another worker; shorter if the worker's steps are fast and another worker exists")
	fs.DurationVar(&c.MaxRequestTime, prefix+"max-request-time", 10*time.Minute, "maximum time of a request; its own deadline may be earlier")
	fs.DurationVar(&c.ConnectTimeout, prefix+"connect-timeout", time.Second, "time limit for connecting to one address of a worker")
	fs.StringVar(&c.GenerationConfig, "generation-config", preprocess.GenerationConfigModel, "source of sampling parameters that a request leaves out: model (its generation_config.json) or none")
	fs.IntVar(&c.KeptLogs, prefix+"kept-logs", 1024, "maximum finished requests that can still be resumed")
	fs.Var(&c.KeptMemory, prefix+"kept-memory", "memory for finished requests that can still be resumed; the oldest are forgotten first")
	fs.Var(&c.ReceiveMemory, prefix+"receive-memory", "memory for requests until they are answered, for gRPC and HTTP each")
	fs.DurationVar(&c.ReceiveTimeout, prefix+"receive-timeout", 30*time.Second, "maximum time for a request to arrive")
	fs.Var(&c.UnreadMemory, prefix+"unread-memory", "memory for answers that clients have not read yet, and the same again inside gRPC's connections")
	fs.Var(&c.UnreadRequest, prefix+"unread-request", "maximum memory of one request's unread or resumable answer")
	fs.DurationVar(&c.UnreadTimeout, prefix+"unread-timeout", 30*time.Second, "how long a client may read nothing before its call ends")
	fs.IntVar(&c.MaxConnections, prefix+"max-connections", 2048, "maximum client connections, for gRPC and HTTP each; a new one replaces the longest idle")
}

// Validate checks ranges; its error names every field that is wrong.
func (c Config) Validate() error {
	var errs []error
	positive := func(name string, ok bool, value any) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s is %v: it must be above 0", name, value))
		}
	}
	positive("queue-limit", c.QueueLimit > 0, c.QueueLimit)
	positive("max-queue-wait", c.MaxQueueWait > 0, c.MaxQueueWait)
	positive("tenant-max-requests", c.TenantMaxRequests > 0, c.TenantMaxRequests)
	positive("max-attempts", c.MaxAttempts > 0, c.MaxAttempts)
	positive("no-worker-grace", c.NoWorkerGrace > 0, c.NoWorkerGrace)
	positive("worker-keep", c.WorkerKeep > 0, c.WorkerKeep)
	positive("version-wait", c.VersionWait > 0, c.VersionWait)
	positive("load-stale", c.LoadStale > 0, c.LoadStale)
	positive("report-doubt", c.ReportDoubt > 0, c.ReportDoubt)
	positive("transfer-bytes-per-second", c.TransferBytesPerSecond > 0, c.TransferBytesPerSecond)
	positive("worker-silence", c.WorkerSilence > 0, c.WorkerSilence)
	positive("prompt-silence", c.PromptSilence > 0, c.PromptSilence)
	positive("max-request-time", c.MaxRequestTime > 0, c.MaxRequestTime)
	positive("connect-timeout", c.ConnectTimeout > 0, c.ConnectTimeout)
	positive("kept-logs", c.KeptLogs > 0, c.KeptLogs)
	positive("receive-timeout", c.ReceiveTimeout > 0, c.ReceiveTimeout)
	positive("unread-timeout", c.UnreadTimeout > 0, c.UnreadTimeout)
	positive("max-connections", c.MaxConnections > 0, c.MaxConnections)
	for _, size := range []struct {
		name  string
		value bytesize.Size
		least bytesize.Size
	}{
		{"kept-memory", c.KeptMemory, 1}, {"unread-request", c.UnreadRequest, 64 << 10},
		{"unread-memory", c.UnreadMemory, c.UnreadRequest}, {"receive-memory", c.ReceiveMemory, 16 << 20},
	} {
		if size.value < size.least {
			errs = append(errs, fmt.Errorf("%s is %s: it must be at least %s", size.name, size.value.String(), size.least.String()))
		}
	}
	if err := c.ValidateGenerationConfig(); err != nil {
		errs = append(errs, err)
	}
	if c.DisaggregateMinTokens < 0 {
		errs = append(errs, fmt.Errorf("disaggregate-min-tokens is %d: it must not be negative", c.DisaggregateMinTokens))
	}
	if err := c.Budget.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// ValidateGenerationConfig checks the one field whose flag has no prefix.
func (c Config) ValidateGenerationConfig() error {
	if c.GenerationConfig != preprocess.GenerationConfigModel && c.GenerationConfig != preprocess.GenerationConfigNone {
		return fmt.Errorf("generation-config is %q: it must be %s or %s", c.GenerationConfig, preprocess.GenerationConfigModel, preprocess.GenerationConfigNone)
	}
	return nil
}

// Limits are those of a server that clients reach over gRPC.
func (c Config) Limits() rpc.Limits {
	return rpc.Limits{
		ReceiveBytes: int64(c.ReceiveMemory), ReceiveTimeout: c.ReceiveTimeout,
		SendBytes: int64(c.UnreadMemory), SendTimeout: c.UnreadTimeout, Connections: c.MaxConnections,
	}
}

// routing is the policy's part of the configuration, with what is not a flag.
func (c Config) routing(models []Model) routing.Config {
	served := make([]routing.Model, len(models))
	for i, m := range models {
		served[i] = routing.Model{Name: m.Spec.Name, Digest: m.Spec.Digest}
	}
	config := c.policy
	config.Models, config.Silence = served, c.silence()
	config.ReportLag, config.NearBest, config.TPOTHorizonTokens, config.IndexBlocks = 100*time.Millisecond, 0.1, 64, 1<<20
	return config
}

// silence is how long a worker may be silent in a request at most.
func (c Config) silence() routing.Silence {
	return routing.Silence{Queue: c.MaxQueueWait, Prompt: c.PromptSilence, Tokens: c.WorkerSilence}
}

// requests is how requests are served.
func (c Config) requests() serving.Config {
	config := c.answers
	config.Silence = c.silence()
	return config
}
