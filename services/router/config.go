package router

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/scaling"
	"github.com/tandem-serving/tandem/services/router/latencybudget"
	"github.com/tandem-serving/tandem/services/router/openai"
	"github.com/tandem-serving/tandem/services/router/preprocess"
	"github.com/tandem-serving/tandem/services/router/serving"
)

// Config is the router's configuration. DefaultConfig works.
type Config struct {
	// Routing is how workers are chosen. The router itself sets Router, Models and HideTenants.
	Routing routing.Config
	// Serving is how requests are served. The router itself sets Silence.
	Serving serving.Config
	// ConnectTimeout is how long one address of a worker is tried.
	ConnectTimeout time.Duration
	// ReceiveMemory is what requests may take until they are answered, over gRPC and
	// over HTTP each, and ReceiveTimeout how long one may take to come.
	ReceiveMemory  bytesize.Size
	ReceiveTimeout time.Duration
	// UnreadTimeout is how long a client may read nothing of its answer. Over HTTP it has this
	// and a second for each 64 KiB to read all of an answer, or of one event. gRPC's connections
	// may hold as much as UnreadMemory beside it.
	UnreadTimeout time.Duration
	// MaxConnections is the most connections of clients, over gRPC and over HTTP each.
	MaxConnections int
	// CORSOrigins are the web pages, as "https://app.example.com", that may call the HTTP API from
	// browsers; "*": all. None: browsers let no page but the API's own call it.
	CORSOrigins []string
	// GenerationConfig says where the sampling that a request leaves out comes
	// from: GenerationConfigModel or GenerationConfigNone. Its flag has no prefix.
	GenerationConfig string
	// Budget is how long requests may take. Its flags are its own.
	Budget latencybudget.Config
	// Scaling is how the desired sizes of pools follow the load.
	Scaling scaling.Config
}

// DefaultConfig is the configuration that nobody changed.
func DefaultConfig() Config {
	var c Config
	c.RegisterFlags(pflag.NewFlagSet("", pflag.ContinueOnError), "")
	return c
}

// RegisterFlags adds the flags, each name after prefix, and with them the defaults, also of
// Budget, whose flags are its own.
func (c *Config) RegisterFlags(fs *pflag.FlagSet, prefix string) {
	c.Serving.KeptMemory, c.ReceiveMemory, c.Serving.UnreadMemory, c.Serving.UnreadRequest = 64<<20, 128<<20, 64<<20, 16<<20
	c.Budget = latencybudget.DefaultConfig()
	c.Routing.RegisterFlags(fs, prefix)
	c.Serving.RegisterFlags(fs, prefix)
	c.Scaling.RegisterFlags(fs, prefix)
	fs.DurationVar(&c.ConnectTimeout, prefix+"connect-timeout", routing.DefaultConnectTimeout, "time limit for connecting to one address of a worker")
	fs.StringVar(&c.GenerationConfig, "generation-config", preprocess.GenerationConfigModel, "source of sampling parameters that a request leaves out: model (its generation_config.json) or none")
	fs.BoolVar(&c.Serving.CacheByTenant, prefix+"cache-by-tenant", false, "keep the cached prefixes of tenants apart, so that no tenant can tell from the time to its first token what another one asked; always so with --auth required")
	fs.IntVar(&c.Serving.KeptLogs, prefix+"kept-logs", 1024, "maximum finished requests that can still be resumed")
	fs.Var(&c.Serving.KeptMemory, prefix+"kept-memory", "memory for finished requests that can still be resumed; the oldest of the tenant that has most are forgotten first")
	fs.StringSliceVar(&c.CORSOrigins, prefix+"cors-origins", nil, "web pages that may call the HTTP API from browsers, such as https://app.example.com; *: all; empty: none")
	fs.Var(&c.ReceiveMemory, prefix+"receive-memory", "memory for requests until they are answered, for gRPC and HTTP each")
	fs.DurationVar(&c.ReceiveTimeout, prefix+"receive-timeout", rpc.DefaultReceiveTimeout, "maximum time for a request to arrive")
	fs.Var(&c.Serving.UnreadMemory, prefix+"unread-memory", "memory for answers that clients have not read yet; the same again inside gRPC's connections, and half of it for vectors that are being computed")
	fs.Var(&c.Serving.UnreadRequest, prefix+"unread-request", "maximum memory of one request's unread or resumable answer")
	fs.DurationVar(&c.UnreadTimeout, prefix+"unread-timeout", rpc.DefaultSendTimeout, "how long a client may read nothing before its call ends; over HTTP, all of a long answer has this and a second for each 64 KiB")
	fs.IntVar(&c.MaxConnections, prefix+"max-connections", rpc.DefaultConnections, "maximum client connections, for gRPC and HTTP each; a new one replaces the longest idle")
}

// Validate checks ranges; its error names every field that is wrong.
func (c Config) Validate() error {
	errs := []error{c.Routing.Validate(), c.Serving.Validate(), c.Scaling.Validate()}
	positive := func(name string, ok bool, value any) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s is %v: it must be above 0", name, value))
		}
	}
	positive("connect-timeout", c.ConnectTimeout > 0, c.ConnectTimeout)
	positive("kept-logs", c.Serving.KeptLogs > 0, c.Serving.KeptLogs)
	positive("receive-timeout", c.ReceiveTimeout > 0, c.ReceiveTimeout)
	positive("unread-timeout", c.UnreadTimeout > 0, c.UnreadTimeout)
	positive("max-connections", c.MaxConnections > 0, c.MaxConnections)
	for _, size := range []struct {
		name  string
		value bytesize.Size
		least bytesize.Size
	}{
		{"kept-memory", c.Serving.KeptMemory, 1}, {"unread-request", c.Serving.UnreadRequest, 64 << 10},
		{"unread-memory", c.Serving.UnreadMemory, c.Serving.UnreadRequest}, {"receive-memory", c.ReceiveMemory, 16 << 20},
	} {
		if size.value < size.least {
			errs = append(errs, fmt.Errorf("%s is %s: it must be at least %s", size.name, size.value.String(), size.least.String()))
		}
	}
	if err := openai.CheckOrigins(c.CORSOrigins); err != nil {
		errs = append(errs, fmt.Errorf("cors-origins: %w", err))
	}
	if err := c.ValidateGenerationConfig(); err != nil {
		errs = append(errs, err)
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
		SendBytes: int64(c.Serving.UnreadMemory), SendTimeout: c.UnreadTimeout, Connections: c.MaxConnections, ConnectionsBy: "--router-max-connections",
	}
}

// routing is the policy's part of the configuration, with what is not a flag.
func (c Config) routing(id string, models []Model) routing.Config {
	served := make([]routing.Model, len(models))
	for i, m := range models {
		served[i] = routing.Model{Name: m.Spec.Name, Digest: m.Spec.Digest}
	}
	config := c.Routing
	config.Router, config.Models = id, served
	return config
}

// requests is how requests are served.
func (c Config) requests() serving.Config {
	config := c.Serving
	config.Silence = c.Routing.Silence()
	return config
}
