package routing

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Config is the policy's constants. Every field has to be set.
type Config struct {
	// Router is this router's id, by which it tells its own reports from those of others. Empty: it
	// neither tells other routers anything nor listens to them.
	Router string
	// Models are those that requests may ask for, names unique.
	Models []Model
	// VersionWait is how long the version of a model may still change after the
	// first of its workers has answered, unless a request is sent before.
	VersionWait time.Duration
	// QueueLimit is the most requests that wait.
	QueueLimit int
	// Policy is how workers are chosen, by name; empty: DefaultPolicy.
	Policy string
	// MaxQueueWait is how long a request waits at most, its own deadline aside.
	MaxQueueWait time.Duration
	// TenantMaxRequests is the most requests of one tenant, waiting and running.
	TenantMaxRequests int
	// HideTenants keeps the names of tenants out of decisions, which each tenant may read of its own
	// requests.
	HideTenants bool
	// DisaggregateMinTokens: in mode auto, prompts with fewer uncached tokens are never sent from one
	// worker to another, whatever that costs: one worker does all.
	DisaggregateMinTokens int
	// Classes are the objectives of classes, and DefaultClass the class of requests that ask for
	// none and have no objective.
	Classes      Classes
	DefaultClass string
	// NoWorkerGrace is how long a request waits for a worker when there is none.
	NoWorkerGrace time.Duration
	// WorkerKeep is how long a worker that etcd does not list any more is kept while its
	// connection works, counted while etcd answers.
	WorkerKeep time.Duration
	// LoadStale is the age from which on a load report is not used.
	LoadStale time.Duration
	// ReportDoubt is how long a worker may be full by its reports, but not by the router's
	// own account, before a request is sent there nevertheless.
	ReportDoubt time.Duration
	// ReportLag is how long a dispatch takes at most to show in load reports.
	ReportLag time.Duration
	// TransferBytesPerSecond is what a KV transfer is taken to move until some were measured.
	TransferBytesPerSecond float64
	// NearBest: workers are equal if their costs differ by less than this share of
	// the time to the first token on the best of them.
	NearBest float64
	// TPOTHorizonTokens is over how many output tokens the predicted time per
	// token counts in the cost of a decode worker, at most.
	TPOTHorizonTokens int
	// HedgeShare is how many hedged attempts there may be of requests whose first token is late, as a
	// share of the requests; 0: none.
	HedgeShare float64
	// RetryShare is how many retries there may be after workers failed, as a share of the requests
	// that came in the last ten seconds, or of those that run and wait if they are more; the first one after a
	// worker is lost is free. 0: none.
	RetryShare float64
	// OmitCandidates leaves the workers that were looked at out of decisions: for whoever
	// shows them to nobody.
	OmitCandidates bool
	// WorkerSilence is how long a worker may take from one token to the next before
	// its requests go to another one: far longer than any step, which computes one
	// chunk of a prompt beside the running sequences. It is the most: where there is
	// another worker, this one is suspected after tens of times what its own steps
	// take (silence.go).
	WorkerSilence time.Duration
	// PromptSilence is the same while a whole prompt is computed, about which a
	// worker says nothing in between, and while the rest of its KV is sent. It does
	// not depend on the prompt: it has to suffice for the longest. While a worker
	// keeps a request in its own queue, MaxQueueWait counts instead.
	PromptSilence time.Duration
	// IndexBlocks is the most different blocks that the prefix index knows.
	IndexBlocks int
}

// RegisterFlags adds the flags, each name after prefix, with the defaults, also of what is
// no flag. Models has none.
func (c *Config) RegisterFlags(fs *pflag.FlagSet, prefix string) {
	c.ReportLag, c.NearBest, c.TPOTHorizonTokens, c.IndexBlocks = 100*time.Millisecond, 0.1, 64, 1<<20
	c.Classes = defaultClasses()
	fs.Var(&c.Classes, "class", "latency objective of a class of requests, NAME=ttft:500ms,tpot:30ms or NAME=none; repeat it for others. The classes are "+strings.Join(ClassNames(), ", "))
	fs.StringVar(&c.DefaultClass, "default-class", ClassStandard, "class of requests that have neither a class nor an objective: they are refused when workers are too busy to serve them in time")
	fs.StringVar(&c.Policy, prefix+"policy", DefaultPolicy, "how to choose workers: "+strings.Join(Policies(), ", "))
	fs.IntVar(&c.QueueLimit, prefix+"queue-limit", 1024, "maximum requests that wait for workers")
	fs.DurationVar(&c.MaxQueueWait, prefix+"max-queue-wait", 30*time.Second, "maximum time that a request waits for workers, and then again in a worker's own queue")
	fs.IntVar(&c.TenantMaxRequests, prefix+"tenant-max-requests", 1024, "maximum requests of one tenant at a time")
	fs.IntVar(&c.DisaggregateMinTokens, prefix+"disaggregate-min-tokens", 0, "in mode auto, never send prompts with fewer uncached tokens from one worker to another: one worker does all; others go where their request is predicted to cost less")
	fs.DurationVar(&c.NoWorkerGrace, prefix+"no-worker-grace", time.Second, "how long a request waits if no worker exists")
	fs.DurationVar(&c.WorkerKeep, prefix+"worker-keep", 30*time.Second, "how long to keep a worker that etcd no longer lists, while its connection works")
	fs.DurationVar(&c.VersionWait, prefix+"version-wait", 5*time.Second, "how long after a model's first worker appears its served version may still change, unless a request is sent before")
	fs.DurationVar(&c.LoadStale, prefix+"load-stale", 3*time.Second, "age at which load reports are ignored")
	fs.DurationVar(&c.ReportDoubt, prefix+"report-doubt", 500*time.Millisecond, "how long to believe load reports that say a worker is full before trying it with a request")
	fs.Float64Var(&c.TransferBytesPerSecond, prefix+"transfer-bytes-per-second", 1e9, "first guess of what a KV transfer moves, in bytes per second, until some were measured")
	fs.Float64Var(&c.HedgeShare, prefix+"hedge-share", 0.02, "maximum share of requests that get a hedged attempt on other workers because their first token is later than 95% are predicted; 0: none")
	fs.Float64Var(&c.RetryShare, prefix+"retry-share", 0.5, "maximum retries after failures of workers, as a share of the requests that came in the last 10s, or of those that run and wait if they are more, beside 16; a request's first retry is free if its worker died or was disconnected; 0: no retries")
	fs.DurationVar(&c.WorkerSilence, prefix+"worker-silence", 10*time.Second, "longest gap between tokens before a worker's requests go to another; shorter if its steps are fast and another worker exists")
	fs.DurationVar(&c.PromptSilence, prefix+"prompt-silence", time.Minute, "longest time to compute a prompt before the request goes to another worker; shorter if the worker's steps are fast and another worker exists")
}

// Validate checks the ranges of what flags set; its error names every field that is wrong.
func (c *Config) Validate() error {
	var errs []error
	positive := func(name string, ok bool, value any) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s is %v: it must be above 0", name, value))
		}
	}
	if err := CheckPolicy(c.Policy); err != nil {
		errs = append(errs, fmt.Errorf("policy: %w", err))
	}
	if err := checkClass(c.DefaultClass); err != nil {
		errs = append(errs, fmt.Errorf("default-class: %w", err))
	}
	positive("queue-limit", c.QueueLimit > 0, c.QueueLimit)
	positive("max-queue-wait", c.MaxQueueWait > 0, c.MaxQueueWait)
	positive("tenant-max-requests", c.TenantMaxRequests > 0, c.TenantMaxRequests)
	positive("no-worker-grace", c.NoWorkerGrace > 0, c.NoWorkerGrace)
	positive("worker-keep", c.WorkerKeep > 0, c.WorkerKeep)
	positive("version-wait", c.VersionWait > 0, c.VersionWait)
	positive("load-stale", c.LoadStale > 0, c.LoadStale)
	positive("report-doubt", c.ReportDoubt > 0, c.ReportDoubt)
	positive("transfer-bytes-per-second", c.TransferBytesPerSecond > 0, c.TransferBytesPerSecond)
	positive("worker-silence", c.WorkerSilence > 0, c.WorkerSilence)
	positive("prompt-silence", c.PromptSilence > 0, c.PromptSilence)
	if !(c.HedgeShare >= 0 && c.HedgeShare <= 1) {
		errs = append(errs, fmt.Errorf("hedge-share is %v: it must be from 0 to 1", c.HedgeShare))
	}
	if !(c.RetryShare >= 0) {
		errs = append(errs, fmt.Errorf("retry-share is %v: it must not be negative", c.RetryShare))
	}
	if c.DisaggregateMinTokens < 0 {
		errs = append(errs, fmt.Errorf("disaggregate-min-tokens is %d: it must not be negative", c.DisaggregateMinTokens))
	}
	return errors.Join(errs...)
}

// Silence is how long a worker may be silent in a request, whatever is known of it.
func (c *Config) Silence() Silence {
	return Silence{Queue: c.MaxQueueWait, Prompt: c.PromptSilence, Tokens: c.WorkerSilence}
}
