package routing

import "time"

// Config is the policy's constants. Every field has to be set.
type Config struct {
	// Models are those that requests may ask for, names unique.
	Models []Model
	// VersionWait is how long the version of a model may still change after the
	// first of its workers has answered, unless a request is sent before.
	VersionWait time.Duration
	// QueueLimit is the most requests that wait.
	QueueLimit int
	// MaxQueueWait is how long a request waits at most, its own deadline aside.
	MaxQueueWait time.Duration
	// TenantMaxRequests is the most requests of one tenant, waiting and running.
	TenantMaxRequests int
	// DisaggregateMinTokens: in mode auto, prompts with fewer uncached tokens are
	// computed on the decode worker.
	DisaggregateMinTokens int
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
	// TransferBytesPerSecond is what a KV transfer is taken to move.
	TransferBytesPerSecond float64
	// NearBest: workers are equal if their costs differ by less than this share of
	// the time to the first token on the best of them.
	NearBest float64
	// TPOTHorizonTokens is over how many output tokens the predicted time per
	// token counts in the cost of a decode worker, at most.
	TPOTHorizonTokens int
	// Silence is how long a worker may be silent in a request, whatever is known of it.
	Silence Silence
	// IndexBlocks is the most different blocks that the prefix index knows.
	IndexBlocks int
}

// Rand is the source of the choice among the near-best.
type Rand interface {
	// IntN returns a number from 0 to n-1.
	IntN(n int) int
}
