package mesh

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/signals"
	"github.com/tandem-serving/tandem/pkg/telemetry"
	"github.com/tandem-serving/tandem/services/decode"
	store "github.com/tandem-serving/tandem/services/kvtransfer"
	"github.com/tandem-serving/tandem/services/prefill"
	"github.com/tandem-serving/tandem/services/router"
	"github.com/tandem-serving/tandem/services/router/preprocess"
)

// Options are what a process is told, whatever parts it runs.
type Options struct {
	// Model is the model's directory; empty: the bundled model.
	Model string
	// ModelName is what requests call it; empty: the directory's name.
	ModelName string
	// ModelAliases are further names of the model, or patterns of path.Match.
	ModelAliases []string
	// ChatTemplate is a file with a chat template; empty: the model's own.
	ChatTemplate string
	// ToolCallParser is the format of the model's tool calls: see preprocess.Model.
	ToolCallParser string
	// ContextTokens is the most tokens of prompt and answer together; 0: as many as
	// the model has.
	ContextTokens int
	// Metrics and HTTP are where those are served; empty: nowhere.
	Metrics, HTTP string
	// Control is where a router serves operators; empty: nowhere.
	Control string
	// MetricsTokenFile has what scrapers have to show at Metrics, and at HTTP where nobody is asked for
	// a key; empty: nothing.
	MetricsTokenFile string
	// MetricsVLLM shows metrics a second time by the names of vLLM.
	MetricsVLLM bool
	// MetricsPprof serves Go's profiles at Metrics, too.
	MetricsPprof bool
	Trace        telemetry.TracingConfig
	Engine       engines.Config
	Record       RecordConfig
	// StopTimeout bounds how long running requests may take to finish when the
	// process is asked to stop.
	StopTimeout time.Duration
	// StartTimeout bounds how long etcd may take to answer at the start; 0: nothing
	// does.
	StartTimeout time.Duration
	// Membership and Signals say where etcd and NATS are; without addresses 'up' runs its own.
	Membership membership.Config
	Signals    signals.Config
	// TLS is this part's; the zero value: connections are not encrypted.
	TLS   identity.Config
	KV    kvtransfer.Config
	Store store.Config

	// Auth says who may call a router.
	Auth auth.Config

	Router  router.Config
	Prefill prefill.Config
	Decode  decode.Config
}

// RegisterFlags adds the flags of everything but where the process itself listens, with
// defaults that work.
func (o *Options) RegisterFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&o.StopTimeout, "stop-timeout", 30*time.Second, "how long running requests may take to finish once the process is told to stop")
	fs.DurationVar(&o.StartTimeout, "start-timeout", 10*time.Second, "how long to wait for etcd at the start before giving up; 0: until it answers")
	fs.BoolVar(&o.MetricsVLLM, "metrics-vllm", true, "also serve metrics under vLLM's names (vllm:…), for dashboards made for vLLM")
	fs.BoolVar(&o.MetricsPprof, "metrics-pprof", false, "also serve profiles of this process under /debug/pprof/ on --metrics, for go tool pprof")
	fs.StringVar(&o.MetricsTokenFile, "metrics-token-file", "", "file with a token that --metrics, and --http where nobody is asked for a key, ask for (Authorization: Bearer) before they show metrics; probes need none; empty: nobody is asked")
	o.Membership.RegisterFlags(fs)
	o.Signals.RegisterFlags(fs)
	o.Trace.RegisterFlags(fs)
	o.KV.RegisterFlags(fs)
	o.Store.RegisterFlags(fs)
	o.registerModelFlags(fs)
}

// registerModelFlags adds the flags of what loads the model, computes and routes:
// everything but block stores.
func (o *Options) registerModelFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Model, "model", "", "directory of the model (default: the bundled one)")
	fs.StringVar(&o.ModelName, "model-name", "", "name that requests use for the model (default: the directory's name)")
	fs.StringVar(&o.ChatTemplate, "chat-template", "", "file with a chat template in Jinja, to use instead of the model's own")
	fs.StringVar(&o.ToolCallParser, "tool-call-parser", preprocess.ToolCallsAuto, "how the model writes tool calls: hermes (Qwen too), llama3_json, mistral; auto: as its chat template does; none: tools are refused")
	fs.IntVar(&o.ContextTokens, "context-tokens", 0, "most tokens of a prompt and its answer together; bounds the KV memory of a sequence; 0: the model's context")
	o.Record.RegisterFlags(fs)
	o.Auth.RegisterFlags(fs)
	o.Engine.RegisterFlags(fs)
	o.Router.RegisterFlags(fs, "router-")
	o.Router.Budget.RegisterFlags(fs, "budget-")
	o.Prefill.RegisterFlags(fs)
	o.Decode.RegisterFlags(fs)
}

// Validate checks ranges. What depends on the model is checked when it is loaded.
func (o *Options) Validate() error {
	return cmp.Or(o.validateShared(), o.validateModel())
}

// validateShared checks what every part has, block stores too.
func (o *Options) validateShared() error {
	switch {
	case o.StopTimeout <= 0:
		return fmt.Errorf("--stop-timeout: %v is not above 0", o.StopTimeout)
	case o.StartTimeout < 0:
		return fmt.Errorf("--start-timeout: %v is negative; 0 waits until etcd answers", o.StartTimeout)
	}
	return cmp.Or(checkListen("--http", o.HTTP), checkListen("--metrics", o.Metrics), o.checkMetricsToken(), o.checkPprof(), o.Membership.ValidateFlags(), o.Signals.ValidateFlags(), o.TLS.Validate(), o.Trace.Validate(), o.KV.Validate(), flagError("--", o.Store.Validate()))
}

// flagError is an error that begins with a flag's name, behind the flag's prefix.
func flagError(prefix string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s%w", prefix, err)
}

// validateModel checks what registerModelFlags sets: everything but block stores.
func (o *Options) validateModel() error {
	if err := o.Engine.Validate(); err != nil {
		return err
	}
	switch kv := o.Engine.CPU.KV; {
	case kv != cpu.KVBF16 && o.Decode.KVEncoding == "int8":
		return fmt.Errorf("--decode-kv-encoding: with --cpu-kv %s KV is small already and is sent unchanged: leave out one of the two", kv)
	case o.ContextTokens < 0 || o.ContextTokens == 1:
		return fmt.Errorf("--context-tokens: %d is too few for a prompt and an answer: pass 2 or more, or 0 for the model's context", o.ContextTokens)
	}
	if err := preprocess.CheckToolCallParser(o.ToolCallParser); err != nil {
		return fmt.Errorf("--tool-call-parser: %w", err)
	}
	for _, alias := range o.ModelAliases {
		if err := preprocess.CheckAlias(alias); err != nil {
			return fmt.Errorf("--model-alias: %w", err)
		}
	}
	return cmp.Or(
		checkListen("--control", o.Control),
		o.Record.Validate(),
		o.Auth.Validate(),
		flagError("--", o.Prefill.Validate(o.Engine.BlockTokens)),
		flagError("--", o.Decode.Validate(o.Engine.BlockTokens)),
		flagError("--", o.Router.Budget.Validate()),
		flagError("--", o.Router.ValidateGenerationConfig()),
		flagError("--router-", firstOf(o.Router.Validate())),
	)
}

// firstOf is the first of joined errors: one line says one thing to do.
func firstOf(err error) error {
	if joined, is := err.(interface{ Unwrap() []error }); is && len(joined.Unwrap()) > 0 {
		return joined.Unwrap()[0]
	}
	return err
}
