package mesh_test

import (
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// defaultOptions are the options with no flag given, and without an etcd or NATS.
func defaultOptions() mesh.Options {
	var o mesh.Options
	o.RegisterFlags(pflag.NewFlagSet("defaults", pflag.ContinueOnError))
	o.Membership.Endpoints, o.Signals.URLs = nil, nil
	return o
}

func TestDefaultsAreValid(t *testing.T) {
	o := defaultOptions()
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
	if o.Engine.KVMemory != bytesize.Auto || o.Engine.Name != engines.Auto {
		t.Errorf("defaults %+v", o.Engine)
	}
}

// wantFlag checks that an error is one line that begins with a flag which exists.
func wantFlag(t *testing.T, err error, flag string, fs *pflag.FlagSet) {
	t.Helper()
	if err == nil {
		t.Fatal("it is valid")
	}
	if text := err.Error(); !strings.HasPrefix(text, "--"+flag+": ") && !strings.HasPrefix(text, "--"+flag+" ") || strings.Contains(text, "\n") {
		t.Errorf("%q does not name --%s in one line", text, flag)
	}
	if fs.Lookup(flag) == nil {
		t.Errorf("there is no flag --%s", flag)
	}
}

func TestOptionsNameTheirFlags(t *testing.T) {
	for _, c := range []struct {
		flag   string
		change func(*mesh.UpOptions)
	}{
		{"engine", func(o *mesh.UpOptions) { o.Engine.Name = "gpu" }},
		{"etcd", func(o *mesh.UpOptions) { o.Membership.Endpoints = []string{"127.0.0.1:2379"} }},
		{"nats", func(o *mesh.UpOptions) { o.Signals.URLs = []string{"127.0.0.1:4222"} }},
		{"threads", func(o *mesh.UpOptions) { o.Engine.CPU.Threads = -1 }},
		{"threads", func(o *mesh.UpOptions) { o.Engine.CPU.Threads = 5000 }},
		{"cpu-weights", func(o *mesh.UpOptions) { o.Engine.CPU.Weights = "fp8" }},
		{"cpu-weights", func(o *mesh.UpOptions) { o.Engine.Name, o.Engine.CPU.Weights = engines.Simulated, cpu.Int4 }},
		{"cpu-kv", func(o *mesh.UpOptions) { o.Engine.CPU.KV = "int4" }},
		{"cpu-kv", func(o *mesh.UpOptions) { o.Engine.Name, o.Engine.CPU.KV = engines.Simulated, cpu.KVInt8 }},
		{"decode-kv-encoding", func(o *mesh.UpOptions) {
			o.Engine.Name, o.Engine.CPU.KV, o.Decode.KVEncoding = engines.CPU, cpu.KVInt8, "int8"
		}},
		{"cpu-weight-cache", func(o *mesh.UpOptions) { o.Engine.Name, o.Engine.CPU.WeightCache = engines.Simulated, "/cache" }},
		{"cuda-products", func(o *mesh.UpOptions) { o.Engine.CUDA.Products = "fast" }},
		{"cuda-products", func(o *mesh.UpOptions) { o.Engine.Device, o.Engine.CUDA.Products = engines.DeviceCPU, cuda.CublasLt }},
		{"cuda-products", func(o *mesh.UpOptions) { o.Engine.Name, o.Engine.CUDA.Products = engines.Simulated, cuda.CublasLt }},
		{"cuda-weights", func(o *mesh.UpOptions) { o.Engine.CUDA.Weights = "int3" }},
		{"cuda-kv", func(o *mesh.UpOptions) { o.Engine.CUDA.KV = "int3" }},
		{"nvml", func(o *mesh.UpOptions) {
			o.Engine.Device, o.Engine.CUDA.NVML = engines.DeviceCPU, "/usr/lib/libnvidia-ml.so.1"
		}},
		{"cublaslt", func(o *mesh.UpOptions) { o.Engine.CUDA.CublasLt = "/usr/lib" }},
		{"kv-memory", func(o *mesh.UpOptions) { o.Engine.KVMemory = -5 }},
		{"block-tokens", func(o *mesh.UpOptions) { o.Engine.BlockTokens = 0 }},
		{"block-tokens", func(o *mesh.UpOptions) { o.Engine.BlockTokens = 2048 }},
		{"block-tokens", func(o *mesh.UpOptions) { o.Engine.BlockTokens = 48 }},
		{"block-tokens", func(o *mesh.UpOptions) { o.Engine.BlockTokens = 512 }},
		{"block-tokens", func(o *mesh.UpOptions) { o.Engine.Name, o.Engine.BlockTokens = engines.Simulated, 1025 }},
		{"max-sequences", func(o *mesh.UpOptions) { o.Engine.MaxSequences = 0 }},
		{"max-batch-tokens", func(o *mesh.UpOptions) { o.Engine.MaxBatchTokens = o.Engine.MaxSequences - 1 }},
		{"max-batch-tokens", func(o *mesh.UpOptions) { o.Engine.MaxBatchTokens = math.MaxInt }},
		{"simulated-base-ms", func(o *mesh.UpOptions) { o.Engine.Simulated.StepTime.BaseMs = -1 }},
		{"simulated-base-ms", func(o *mesh.UpOptions) { o.Engine.Simulated.StepTime.BaseMs = math.NaN() }},
		{"simulated-per-token-ms", func(o *mesh.UpOptions) { o.Engine.Simulated.StepTime.PerTokenMs = math.Inf(1) }},
		{"simulated-per-context-token-ms", func(o *mesh.UpOptions) { o.Engine.Simulated.StepTime.PerContextTokenMs = -0.1 }},
		{"stop-timeout", func(o *mesh.UpOptions) { o.StopTimeout = 0 }},
		{"start-timeout", func(o *mesh.UpOptions) { o.StartTimeout = -time.Second }},
		{"lease-ttl", func(o *mesh.UpOptions) { o.Membership.LeaseTTL = time.Millisecond }},
		{"prefill-chunk-tokens", func(o *mesh.UpOptions) { o.Prefill.ChunkTokens = 33 }},
		{"prefill-max-waiting", func(o *mesh.UpOptions) { o.Prefill.MaxWaiting = 0 }},
		{"decode-chunk-tokens", func(o *mesh.UpOptions) { o.Decode.ChunkTokens = 0 }},
		{"decode-max-waiting", func(o *mesh.UpOptions) { o.Decode.MaxWaiting = -1 }},
		{"decode-transfer-lease", func(o *mesh.UpOptions) { o.Decode.TransferLease = 0 }},
		{"decode-transfer-credit-bytes", func(o *mesh.UpOptions) { o.Decode.TransferCreditBytes = 0 }},
		{"decode-transfer-credit-bytes", func(o *mesh.UpOptions) { o.Decode.TransferCreditBytes = 4096 }},
		{"decode-transfer-credit-bytes", func(o *mesh.UpOptions) { o.Decode.TransferCreditBytes = 2 << 40 }},
		{"decode-kv-encoding", func(o *mesh.UpOptions) { o.Decode.KVEncoding = "" }},
		{"store-transfer-credit-bytes", func(o *mesh.UpOptions) { o.Store.TransferCreditBytes = 1 }},
		{"store-transfer-credit-bytes", func(o *mesh.UpOptions) { o.Store.TransferCreditBytes = 1<<40 + 1 }},
		{"router-queue-limit", func(o *mesh.UpOptions) { o.Router.Routing.QueueLimit = 0 }},
		{"router-queue-limit", func(o *mesh.UpOptions) { o.Router.Routing.QueueLimit, o.Router.Serving.MaxAttempts = 0, 0 }},
		{"router-disaggregate-min-tokens", func(o *mesh.UpOptions) { o.Router.Routing.DisaggregateMinTokens = -1 }},
		{"budget-queue", func(o *mesh.UpOptions) { o.Router.Budget.Declared.Stages[api.StageQueue] = -1 }},
		{"budget-transfer-exposed", func(o *mesh.UpOptions) { o.Router.Budget.Declared.Stages[api.StageTransferExposed] = 1 << 60 }},
		{"budget-ttft", func(o *mesh.UpOptions) {
			o.Router.Budget.Declared.Totals[latency.TotalTTFT], o.Router.Budget.Declared.Stages[api.StagePrefill] = 1, 2
		}},
		{"budget-window", func(o *mesh.UpOptions) { o.Router.Budget.Window = 0 }},
		{"prefill", func(o *mesh.UpOptions) { o.PrefillWorkers = -1 }},
		{"prefill", func(o *mesh.UpOptions) { o.PrefillWorkers = 1000 }},
		{"decode", func(o *mesh.UpOptions) { o.DecodeWorkers = 0 }},
		{"decode", func(o *mesh.UpOptions) { o.DecodeWorkers = 1000 }},
		{"listen", func(o *mesh.UpOptions) { o.Listen = "" }},
		{"kv-connections", func(o *mesh.UpOptions) { o.KV.Connections = 0 }},
		{"kv-connections", func(o *mesh.UpOptions) { o.KV.Connections = 9 }},
		{"kv-max-streams", func(o *mesh.UpOptions) { o.KV.MaxStreams = 7 }},
		{"kv-max-connections", func(o *mesh.UpOptions) { o.KV.MaxConnections = 1023 }},
		{"kv-max-connections", func(o *mesh.UpOptions) { o.KV.MaxConnections = o.KV.MaxStreams + 7 }},
		{"kv-transport", func(o *mesh.UpOptions) { o.KV.Transport = "udp" }},
		{"kv-socket", func(o *mesh.UpOptions) { o.KV.Socket = "run/a.sock" }},
		{"kv-socket", func(o *mesh.UpOptions) { o.KV.Socket = "" }},
		{"kv-socket", func(o *mesh.UpOptions) { o.KV.Socket = "/run/a.sock" }},
		{"kv-socket", func(o *mesh.UpOptions) {
			o.KV.Transport, o.KV.Socket = kvtransfer.TransportUnix, kvtransfer.SocketOff
		}},
	} {
		t.Run(c.flag, func(t *testing.T) {
			var o mesh.UpOptions
			fs := pflag.NewFlagSet("up", pflag.ContinueOnError)
			o.RegisterFlags(fs)
			if err := o.Validate(); err != nil {
				t.Fatalf("the defaults: %v", err)
			}
			c.change(&o)
			wantFlag(t, o.Validate(), c.flag, fs)
		})
	}
}

// The simulated engine takes blocks of any size.
func TestBlocksOfTheSimulatedEngine(t *testing.T) {
	for _, tokens := range []int{1, 48, 1024} {
		o := defaultOptions()
		o.Engine.Name, o.Engine.BlockTokens = engines.Simulated, tokens
		o.Prefill.ChunkTokens, o.Decode.ChunkTokens = tokens, tokens
		if err := o.Validate(); err != nil {
			t.Error(err)
		}
	}
}

func TestServeOptionsNameTheirFlags(t *testing.T) {
	for _, c := range []struct {
		name, flag string
		change     func(*mesh.ServeOptions)
	}{
		{"no target", "target", func(o *mesh.ServeOptions) { o.Target = "" }},
		{"unknown target", "target", func(o *mesh.ServeOptions) { o.Target = "Prefill" }},
		{"an id that is too long", "id", func(o *mesh.ServeOptions) { o.ID = strings.Repeat("a", 257) }},
		{"an id that is no text", "id", func(o *mesh.ServeOptions) { o.ID = "a\xff" }},
		{"no etcd", "etcd", func(o *mesh.ServeOptions) { o.Membership.Endpoints = nil }},
		{"no nats", "nats", func(o *mesh.ServeOptions) { o.Signals.URLs = nil }},
		{"advertise without port", "advertise", func(o *mesh.ServeOptions) { o.Advertise = "host7" }},
		{"advertise port 0", "advertise", func(o *mesh.ServeOptions) { o.Advertise = "host7:0" }},
		{"advertise a named port", "advertise", func(o *mesh.ServeOptions) { o.Advertise = "host7:http" }},
		{"advertise a port that is none", "advertise", func(o *mesh.ServeOptions) { o.Advertise = "host7:65536" }},
		{"advertise without host", "advertise", func(o *mesh.ServeOptions) { o.Advertise = ":7071" }},
		{"advertise every interface", "advertise", func(o *mesh.ServeOptions) { o.Advertise = "0.0.0.0:7071" }},
		{"advertise a relative socket", "advertise", func(o *mesh.ServeOptions) { o.Advertise = "unix://run/a.sock" }},
		{"KV on a socket", "kv-listen", func(o *mesh.ServeOptions) { o.KVListen = "unix:///run/a.sock" }},
		{"KV on nothing", "kv-listen", func(o *mesh.ServeOptions) { o.KVListen = "7073" }},
		{"KV told as a socket", "kv-advertise", func(o *mesh.ServeOptions) { o.KVAdvertise = "unix:///run/a.sock" }},
		{"KV told as every interface", "kv-advertise", func(o *mesh.ServeOptions) { o.KVAdvertise = "0.0.0.0:1" }},
		{"a shared option", "lease-ttl", func(o *mesh.ServeOptions) { o.Membership.LeaseTTL = 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var o mesh.ServeOptions
			fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
			o.RegisterFlags(fs)
			o.Target = "decode"
			for _, good := range []string{"", "host7:7071", "[::1]:7071", "10.0.0.1:1", "unix:///run/a.sock"} {
				o.Advertise = good
				if err := o.Validate(); err != nil {
					t.Fatalf("--advertise %q: %v", good, err)
				}
			}
			o.Advertise = ""
			c.change(&o)
			wantFlag(t, o.Validate(), c.flag, fs)
		})
	}
}

// What environments and files say to other parts is nothing to a block store.
func TestStoreIgnoresSettingsOfOthers(t *testing.T) {
	for _, c := range []struct {
		name, flag string // flag: it is the store's own after all
		change     func(*mesh.ServeOptions)
	}{
		{"decode", "", func(o *mesh.ServeOptions) { o.Decode.ChunkTokens = 33 }},
		{"prefill", "", func(o *mesh.ServeOptions) { o.Prefill.MaxWaiting = 0 }},
		{"router", "", func(o *mesh.ServeOptions) { o.Router.Routing.QueueLimit = 0 }},
		{"engine", "", func(o *mesh.ServeOptions) { o.Engine.Name = "gpu" }},
		{"aliases", "", func(o *mesh.ServeOptions) { o.ModelAliases = []string{"["} }},
		{"store", "store-max-puts", func(o *mesh.ServeOptions) { o.Store.MaxPuts = 0 }},
		{"kv", "kv-connections", func(o *mesh.ServeOptions) { o.KV.Connections = 99 }},
		{"trace", "trace-sample", func(o *mesh.ServeOptions) { o.Trace.Share = 2 }},
		{"all parts", "lease-ttl", func(o *mesh.ServeOptions) { o.Membership.LeaseTTL = 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var o mesh.ServeOptions
			fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
			o.RegisterFlags(fs)
			c.change(&o)
			o.Target = "kvtransfer"
			if c.flag != "" {
				wantFlag(t, o.Validate(), c.flag, fs)
			} else if err := o.Validate(); err != nil {
				t.Errorf("a store: %v", err)
			}
			o.Target = "decode"
			if o.Validate() == nil {
				t.Error("a worker takes it")
			}
		})
	}
}

func TestAdvertised(t *testing.T) {
	tcp := func(host string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(host), Port: 7071} }
	for _, c := range []struct {
		name, asked string
		listening   net.Addr
		want        string
	}{
		{"what was asked for", "name:1", tcp("10.1.2.3"), "name:1"},
		{"what is listened on", "", tcp("10.1.2.3"), "10.1.2.3:7071"},
		{"IPv6", "", tcp("::1"), "[::1]:7071"},
		{"a socket", "", &net.UnixAddr{Name: "/run/a.sock", Net: "unix"}, "unix:///run/a.sock"},
	} {
		if got, err := mesh.Advertised(c.asked, c.listening); err != nil || got != c.want {
			t.Errorf("%s: %q, error %v; want %q", c.name, got, err, c.want)
		}
	}
	for _, every := range []string{"0.0.0.0", "::"} {
		got, err := mesh.Advertised("", tcp(every))
		if err != nil {
			t.Fatal(err)
		}
		host, port, err := net.SplitHostPort(got)
		if ip := net.ParseIP(host); err != nil || port != "7071" || ip == nil || ip.IsUnspecified() {
			t.Errorf("%s is advertised as %q", every, got)
		}
	}
}
