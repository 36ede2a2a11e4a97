package commands

// mainFlags are, by command, the flags that its help shows: what most people need. The
// help of a command that is not here shows all of its flags.
var mainFlags = map[string][]string{
	"up": {
		"model", "prefill", "decode", "kvstore", "engine", "kv-memory",
		"listen", "http", "metrics", "auth", "tls", "data-dir", "config",
	},
	"serve": {
		"target", "etcd", "nats", "listen", "advertise", "http", "metrics", "auth",
		"model", "engine", "kv-memory", "config", "log-level",
	},
	"config print up":    {"config", "json"},
	"config print serve": {"config", "json"},
	"generate": {
		"prompt", "token-ids", "max-tokens", "temperature", "top-p", "top-k", "seed", "stop", "json-schema",
		"mode", "addr", "timeout", "json",
	},
	"chat":   {"system", "max-tokens", "temperature", "top-p", "top-k", "seed", "stop", "mode", "addr", "json"},
	"doctor": {"addr", "control", "ca", "cert", "api-key", "etcd", "nats", "data-dir", "timeout", "json"},
	"keys create": {
		"tenant", "scope", "expires", "requests-per-minute", "tokens-per-minute", "max-concurrency", "max-prompt-tokens", "max-answer-tokens", "max-priority", "json",
	},
	"bench serve": {
		"addr", "openai", "rate", "concurrency", "sweep", "find-max", "trace", "duration", "slo",
		"prompt-tokens", "output-tokens", "report", "json",
	},
	"simulate": {
		"seed", "rate", "sweep", "find-max", "duration", "slo", "prompt-tokens", "output-tokens", "mode", "policies", "report", "json",
	},
	"plan": {
		"rate", "prompt-tokens", "output-tokens", "trace", "slo", "profile", "scenario", "model", "max-utilisation", "worker-price", "report", "json",
	},
	"plan verify": {
		"addr", "rate", "prompt-tokens", "output-tokens", "trace", "slo", "profile", "scenario", "prefill", "decode", "duration", "json",
	},
	"replay": {"policy", "router-disaggregate-min-tokens", "router-max-queue-wait", "router-tenant-max-requests", "json"},
	"bench router": {
		"workers", "streams", "connections", "prefix-blocks", "openai", "tls", "tokens", "prompt", "itl", "duration", "model", "json",
	},
	"bench overload": {
		"addr", "openai", "times", "slo", "send-slo", "duration", "prompt-tokens", "output-tokens", "mode", "json",
	},
	"bench modes": {
		"mix", "rates", "rounds", "duration", "slo", "prompt-tokens", "output-tokens", "workers", "virtual", "report", "markdown", "json",
	},
	"bench simulated": {
		"profile", "load", "rounds", "duration", "mode", "pin", "prompt-tokens", "output-tokens", "model", "json",
	},
	"bench speculation": {
		"model", "preset", "dtype", "kv", "threads", "batch", "keep", "tokens", "rounds", "speculate-tokens", "draft-model", "json",
	},
	"bench scheduler": {
		"scenario", "step-budget", "output-share", "rate", "requests", "short-prompt", "long-prompt", "long-share", "output",
		"engine", "profile", "seed", "json",
	},
	"bench engine": {
		"preset", "model", "dtype", "kv", "prompt", "decode", "batch", "context", "threads", "device", "rounds", "json",
	},
	"bench client": {"streams", "token-rate", "itl", "ttft", "tokens", "duration", "connections", "http", "find-max", "json"},
	"profile": {
		"model", "preset", "threads", "cpu-weights", "cpu-kv", "duration", "max-context", "max-chunk", "max-sequences", "layers", "out", "json",
	},
}

// flagGroup is a heading of --help-all with its flags: names, or what they begin with if
// it ends in a hyphen. The longest that fits decides.
type flagGroup struct {
	title string
	flags []string
}

var (
	meshGroups = []flagGroup{
		{"Mesh", []string{"target", "id", "prefill", "decode", "autoscale", "kvstore", "data-dir", "lease-ttl", "start-timeout", "stop-timeout"}},
		{"etcd and NATS", []string{"etcd", "etcd-", "nats", "nats-"}},
		{"TLS", []string{"tls", "tls-", "certs"}},
		{"Addresses", []string{"listen", "advertise", "http", "control", "metrics", "metrics-token-file", "metrics-vllm", "metrics-pprof"}},
		{"Who may call", []string{"auth", "insecure", "published-on", "oidc", "oidc-"}},
		{"Model", []string{"model", "model-", "chat-template", "tool-call-parser", "context-tokens", "generation-config"}},
		{"Engine", []string{"engine", "device", "threads", "block-tokens", "kv-memory", "max-batch-tokens", "max-sequences", "profile"}},
		{"CPU engine", []string{"cpu-"}},
		{"CUDA engine", []string{"cuda-", "cublaslt", "gpu-", "nvml"}},
		{"Simulated engine", []string{"simulated-"}},
		{"Router", []string{"router-", "class", "default-class"}},
		{"Latency budget", []string{"budget-"}},
		{"Prefill workers", []string{"prefill-"}},
		{"Decode workers", []string{"decode-", "speculate", "speculate-tokens", "draft-model", "draft-kv-memory"}},
		{"KV transfer", []string{"kv-"}},
		{"Block stores", []string{"store-"}},
		{"Logs and traces", []string{"log-", "trace-"}},
	}
	samplingGroup = flagGroup{"Sampling", []string{
		"temperature", "top-p", "top-k", "min-p", "typical-p", "seed", "repetition-penalty", "presence-penalty", "frequency-penalty", "logit-bias", "logprobs",
	}}
	loadGroups = []flagGroup{
		{"Load", []string{
			"rate", "rates", "mix", "load", "times", "concurrency", "sweep", "find-max", "duration", "warmup", "rounds", "arrival", "burstiness", "ramp-from", "surge",
			"min-requests", "max-in-flight", "request-timeout", "drain-timeout", "seed",
		}},
		{"Objectives", []string{"slo", "slo-scale", "class", "class-slo", "preset", "send-slo"}},
		{"Requests", []string{
			"prompt-tokens", "output-tokens", "prompt-kind", "text-file", "chars-per-token", "vocabulary-size", "context-tokens",
			"shared-prefix-tokens", "shared-prefixes", "turns", "think", "exact", "temperature", "priority", "tenant", "cache-salt",
		}},
		{"Recorded traffic", []string{"trace", "trace-", "speed"}},
		{"Where it goes", []string{"addr", "api-key", "connections", "mode", "model", "policies", "autoscale", "fixed"}},
		{"What is started", []string{"engine", "profile", "kv-memory", "workers", "prefill", "threads", "pin", "virtual"}},
		{"A server with OpenAI's API", []string{"openai", "openai-"}},
		{"Results", []string{"report", "markdown", "out", "csv", "hdr", "name", "json", "definitions"}},
	}
	planGroups = append([]flagGroup{
		{"Workers", []string{
			"scenario", "model", "profile", "profile-model", "entry", "tensor-parallel", "simulated-", "kv-memory", "block-tokens",
			"max-batch-tokens", "max-sequences", "bandwidth", "latency", "prefill", "decode", "max-workers", "worker-price",
		}},
		{"Rules for sizes", []string{"max-utilisation", "burst", "burst-length", "burst-drain", "deviations", "fan-out"}},
	}, loadGroups...)
	// flagGroups are the headings of --help-all, by command.
	flagGroups = map[string][]flagGroup{
		"up": meshGroups, "serve": meshGroups, "config print up": meshGroups, "config print serve": meshGroups,
		"doctor":   {{"etcd and NATS", []string{"etcd", "etcd-", "nats", "nats-"}}},
		"generate": {samplingGroup}, "chat": {samplingGroup},
		"bench serve": loadGroups, "simulate": loadGroups, "bench modes": loadGroups, "bench overload": loadGroups, "bench simulated": loadGroups,
		"plan": planGroups, "plan verify": planGroups,
		"bench engine": {{"GPU", []string{"cuda-", "cublaslt", "no-graphs", "chunk"}}},
	}
)
