package membership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/identity"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	"google.golang.org/protobuf/encoding/protojson"
)

const (
	workersPrefix = "/tandem/v1/workers/"
	policyKey     = "/tandem/v1/policy"
)

// DefaultLeaseTTL is how long a record outlives its worker.
const DefaultLeaseTTL = 10 * time.Second

// Other defaults of Config.
const (
	// defaultRequestTimeout bounds each request to etcd.
	defaultRequestTimeout = 2 * time.Second
	// defaultProbeInterval is how often a watch asks whether etcd answers.
	defaultProbeInterval = 2 * time.Second
	// defaultRetryWait is the wait after a request failed.
	defaultRetryWait = 500 * time.Millisecond
)

// Config says how to reach etcd.
type Config struct {
	// Endpoints of the cluster, like "http://127.0.0.1:2379".
	Endpoints []string
	// Username, and the file with its password, where etcd asks for them.
	Username, PasswordFile string
	// TLS has the files for https endpoints. The zero value: the system's authorities and no
	// certificate.
	TLS identity.Config
	// LeaseTTL is how long a record outlives its worker, rounded up to seconds.
	// 0: DefaultLeaseTTL.
	LeaseTTL time.Duration
	// RequestTimeout bounds each request. 0: 2 s.
	RequestTimeout time.Duration
	// ProbeInterval is how often a watch asks whether etcd answers. 0: 2 s.
	ProbeInterval time.Duration
	// RetryWait is the wait after a request failed. 0: 500 ms.
	RetryWait time.Duration
}

// Validate checks a configuration.
func (cfg Config) Validate() error {
	if len(cfg.Endpoints) == 0 {
		return errors.New("no etcd endpoint is configured: give at least one, such as http://127.0.0.1:2379")
	}
	if err := cfg.validateEndpoints(); err != nil {
		return fmt.Errorf("etcd endpoint %w", err)
	}
	return nil
}

func (cfg Config) validateEndpoints() error {
	for _, endpoint := range cfg.Endpoints {
		parsed, err := url.Parse(endpoint)
		if err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
			return fmt.Errorf("%q is not a URL such as http://127.0.0.1:2379", endpoint)
		}
	}
	return nil
}

func (cfg Config) withDefaults() Config {
	cfg.LeaseTTL = cmp.Or(cfg.LeaseTTL, DefaultLeaseTTL)
	cfg.RequestTimeout = cmp.Or(cfg.RequestTimeout, defaultRequestTimeout)
	cfg.ProbeInterval = cmp.Or(cfg.ProbeInterval, defaultProbeInterval)
	cfg.RetryWait = cmp.Or(cfg.RetryWait, defaultRetryWait)
	return cfg
}

// Client registers and watches. It is safe for concurrent use.
type Client struct {
	cfg    Config
	log    *slog.Logger
	store  Store
	leases Leases
	closer func() error

	life          context.Context // ends with Close
	end           context.CancelFunc
	there         context.Context // ends with Abandon
	abandon       context.CancelFunc
	registrations sync.WaitGroup
	waited        atomic.Int64 // when it was last said that etcd does not answer yet
}

// Connect makes a client and checks that etcd answers before ctx ends, as Await does.
// The caller closes the client, after its registrations.
func Connect(ctx context.Context, cfg Config, log *slog.Logger) (*Client, error) {
	c, err := Open(cfg, log)
	if err != nil {
		return nil, err
	}
	if err := c.Await(ctx); err != nil {
		// The client cannot fail to close what never connected.
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// Open makes a client, whether or not etcd answers. The caller closes it, after its
// registrations.
func Open(cfg Config, log *slog.Logger) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	etcd, err := newEtcd(cfg, log)
	if err != nil {
		return nil, unreachable(cfg, err)
	}
	c := New(etcd, etcd, cfg, log)
	c.closer = etcd.Close
	return c, nil
}

// How long etcd is waited for until that is said, and how often it is then.
const (
	sayWaitingAfter = 3 * time.Second
	sayWaitingEvery = time.Minute
)

// Await waits until etcd answers. The error, once ctx has ended, is one line that
// names the endpoints.
func (c *Client) Await(ctx context.Context) error {
	for {
		_, err := answer(ctx, c, c.store.Summary, policyKey)
		if err == nil {
			return nil
		}
		now := time.Now().UnixNano()
		c.waited.CompareAndSwap(0, now-int64(sayWaitingEvery-sayWaitingAfter))
		if said := c.waited.Load(); now-said >= int64(sayWaitingEvery) && c.waited.CompareAndSwap(said, now) {
			c.log.Warn("etcd does not answer yet: trying again", slog.Any("error", unreachable(c.cfg, err)))
		}
		if !sleep(ctx, c.cfg.RetryWait) {
			return unreachable(c.cfg, err)
		}
	}
}

func unreachable(cfg Config, err error) error {
	at := strings.Join(cfg.Endpoints, ", ")
	if errors.Is(err, errNoAnswer) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("cannot reach etcd at %s", at)
	}
	return fmt.Errorf("cannot use the etcd at %s: %s", at, strings.Join(strings.Fields(err.Error()), " "))
}

// New makes a client on a store and leases, which a test may provide. The caller
// closes the client; it does not close the store.
func New(store Store, leases Leases, cfg Config, log *slog.Logger) *Client {
	c := &Client{cfg: cfg.withDefaults(), log: log, store: store, leases: leases, closer: func() error { return nil }}
	c.life, c.end = context.WithCancel(context.Background())
	c.there, c.abandon = context.WithCancel(context.Background())
	return c
}

// errAbandoned is the error of all requests after Abandon.
var errAbandoned = errors.New("etcd is gone")

// Abandon says that etcd does not come back, and that people know: the client does not ask it
// any more, nor says that it does not answer. Watches keep their last view, and registrations
// close without an error.
func (c *Client) Abandon() { c.abandon() }

// Close ends registrations that are still open, without removing their records,
// and the connection to etcd. Watches must have ended.
func (c *Client) Close() error {
	c.end()
	defer c.abandon()
	c.registrations.Wait()
	return c.closer()
}

// SetPolicy replaces the policy for all routers, if the one that there is has this revision (0: there
// is none; AnyRevision: whatever there is), and returns the new one's. The error wraps ErrConflict if
// it has another.
func (c *Client) SetPolicy(ctx context.Context, policy *controlv1.Policy, ifRevision int64) (revision int64, err error) {
	value, err := protojson.Marshal(policy)
	if err != nil {
		return 0, fmt.Errorf("set policy: %w", err)
	}
	if len(value) > maxValueBytes {
		return 0, fmt.Errorf("set policy: it has %d bytes, more than %d", len(value), maxValueBytes)
	}
	err = c.bounded(ctx, func(ctx context.Context) (err error) {
		revision, err = c.store.Put(ctx, policyKey, value, 0, ifRevision)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("set policy: %w", err)
	}
	return revision, nil
}

// errNoAnswer says that etcd did not answer within Config.RequestTimeout.
var errNoAnswer = errors.New("etcd does not answer: try again once it does")

// bounded calls request with the configured timeout. Its error is errNoAnswer once that is over.
func (c *Client) bounded(ctx context.Context, request func(context.Context) error) error {
	within, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	defer context.AfterFunc(c.there, cancel)()
	err := request(within)
	switch {
	case c.there.Err() != nil:
		return errAbandoned
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return errNoAnswer
	}
	return err
}

// answer is bounded for a request about one key, prefix or lease, with what etcd answers.
func answer[K, T any](ctx context.Context, c *Client, request func(context.Context, K) (T, error), about K) (got T, err error) {
	err = c.bounded(ctx, func(ctx context.Context) (err error) {
		got, err = request(ctx, about)
		return err
	})
	return got, err
}

// sleep waits and says whether ctx is still alive.
func sleep(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// WorkerKey is the key of a worker's record.
func WorkerKey(role controlv1.Role, workerID string) string {
	return workersPrefix + api.Name(role) + "/" + url.PathEscape(workerID)
}
