package swarmtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/loadtest/workload"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/worker"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	"github.com/tandem-serving/tandem/simulate"
)

// Script is a cluster, its load, and its faults. Times are in milliseconds, those of requests
// and faults since the start of the load.
type Script struct {
	// Seed of the cluster's random numbers: epochs, choices among equal workers, jitter.
	Seed    uint64 `json:"seed"`
	Routers int    `json:"routers"`
	// Mode that all requests ask for: auto, disaggregated or aggregated.
	Mode        string    `json:"mode"`
	Policy      string    `json:"policy"` // of routers
	BlockTokens int       `json:"block_tokens"`
	QueueLimit  int       `json:"queue_limit"`
	TenantMost  int       `json:"tenant_most"`
	HedgeShare  float64   `json:"hedge_share"`
	LatencyMs   float64   `json:"latency_ms"`
	BytesPerS   float64   `json:"bytes_per_s"` // 0: without limit
	Workers     []Worker  `json:"workers"`
	Requests    []Request `json:"requests"`
	Faults      []Fault   `json:"faults"`
}

// Worker is one worker of a script.
type Worker struct {
	ID      string `json:"id"`
	Prefill bool   `json:"prefill,omitempty"`
	Host    string `json:"host"`
	// Blocks of KV, tokens and sequences of a step, tokens of a chunk.
	Blocks      int     `json:"blocks"`
	BatchTokens int     `json:"batch_tokens"`
	Sequences   int     `json:"sequences"`
	Chunk       int     `json:"chunk"`
	Waiting     int     `json:"waiting"`
	OutputShare float64 `json:"output_share"`
	LeaseMs     float64 `json:"lease_ms"`
	Credit      int     `json:"credit"`
	KVChunk     int     `json:"kv_chunk"` // bytes
	BaseMs      float64 `json:"base_ms"`
	Jitter      float64 `json:"jitter"`
}

// Request is one request. Its prompt is Shared tokens of the family's and Own tokens of its
// own, at least one in all.
type Request struct {
	AtMs     float64 `json:"at_ms"`
	Family   int     `json:"family"`
	Shared   int     `json:"shared"`
	Own      int     `json:"own"`
	Seed     uint64  `json:"seed"`
	Tokens   int     `json:"tokens"`
	Tenant   string  `json:"tenant,omitempty"`
	Priority int32   `json:"priority,omitempty"`
	Salt     string  `json:"salt,omitempty"`
	// PatienceMs is how long its client waits; 0: to the end.
	PatienceMs float64 `json:"patience_ms,omitempty"`
}

// Fault happens to a worker, or between two hosts, at a time.
type Fault struct {
	AtMs   float64 `json:"at_ms"`
	Kind   string  `json:"kind"`
	Worker string  `json:"worker,omitempty"`
	// ForMs is its duration, for faults that end by themselves.
	ForMs  float64 `json:"for_ms,omitempty"`
	Factor float64 `json:"factor,omitempty"`
	// Unmeasured hides its slowness from the worker's own measurements.
	Unmeasured bool `json:"unmeasured,omitempty"`
	// A and B are the hosts of a cut.
	A string `json:"a,omitempty"`
	B string `json:"b,omitempty"`
}

// The kinds of Fault.
const (
	kill    = "kill"  // and a new start after ForMs
	drain   = "drain" // and back after ForMs
	slow    = "slow"  // by Factor, for ForMs
	cut     = "cut"   // A from B, for ForMs
	fail    = "fail"  // the next step
	corrupt = "corrupt"
	mute    = "mute" // its signals, for ForMs
	etcd    = "etcd" // away for ForMs
)

// Read reads a script.
func Read(text []byte) (*Script, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	s := new(Script)
	if err := d.Decode(s); err != nil {
		return nil, fmt.Errorf("script: %w", err)
	}
	if err := s.validate(); err != nil {
		return nil, err
	}
	return s, nil
}

// Bounds of a script: more would take hours, or too much memory.
const (
	maxWorkers, maxRequests, maxFaults = 64, 10000, 1000
	maxTokens, maxBlocks               = 2048, 1 << 20
	maxMs                              = 24 * 3600 * 1000
)

func (s *Script) validate() error {
	if _, known := api.Parse[inferencev1.Mode](s.Mode); !known {
		return fmt.Errorf("script: there is no mode %q", s.Mode)
	}
	if !slices.Contains(routing.Policies(), s.Policy) {
		return fmt.Errorf("script: there is no policy %q", s.Policy)
	}
	if !(s.HedgeShare >= 0 && s.HedgeShare <= 1) {
		return fmt.Errorf("script: the share of hedged requests is %v", s.HedgeShare)
	}
	ids := make(map[string]bool)
	for _, w := range s.Workers {
		if w.ID == "" || ids[w.ID] || w.Blocks < 1 || w.Blocks > maxBlocks || w.BatchTokens < 1 || w.Sequences < 1 || w.Chunk < s.BlockTokens || w.Waiting < 1 || !(w.OutputShare > 0 && w.OutputShare <= 1) {
			return fmt.Errorf("script: worker %q: its id is taken, or a limit is out of range", w.ID)
		}
		ids[w.ID] = true
	}
	if len(s.Workers) > maxWorkers || len(s.Requests) > maxRequests || len(s.Faults) > maxFaults || s.Routers < 1 || s.Routers > maxWorkers || s.BlockTokens < 1 {
		return fmt.Errorf("script: at most %d workers and routers, %d requests and %d faults, and at least one router", maxWorkers, maxRequests, maxFaults)
	}
	if has := func(prefill bool) bool {
		return slices.ContainsFunc(s.Workers, func(w Worker) bool { return w.Prefill == prefill })
	}; !has(false) || (s.Mode == "disaggregated" || s.Policy == "disaggregated") && !has(true) {
		return errors.New("script: the mode needs a worker that it lacks")
	}
	for i, r := range s.Requests {
		if r.Shared < 0 || r.Own < 0 || r.Shared+r.Own < 1 || r.Tokens < 1 || r.Shared+r.Own+r.Tokens > maxTokens || r.AtMs < 0 || r.AtMs > maxMs {
			return fmt.Errorf("script: request %d: its lengths or time are out of range", i+1)
		}
	}
	for i, f := range s.Faults {
		switch f.Kind {
		case kill, drain, fail, corrupt, mute, slow:
			if !ids[f.Worker] {
				return fmt.Errorf("script: fault %d: there is no worker %q", i+1, f.Worker)
			}
		case cut, etcd:
		default:
			return fmt.Errorf("script: fault %d: there is no kind %q", i+1, f.Kind)
		}
		if f.AtMs < 0 || f.ForMs < 0 || f.AtMs > maxMs || f.ForMs > maxMs {
			return fmt.Errorf("script: fault %d: its times are outside a day", i+1)
		}
	}
	return nil
}

// JSON is the script as Read reads it.
func (s *Script) JSON() []byte {
	text, _ := json.MarshalIndent(s, "", " ") // numbers and strings
	return append(text, '\n')
}

func ms(t float64) time.Duration { return time.Duration(t * float64(time.Millisecond)) }

const (
	perTokenMs, perContextTokenMs = 0.05, 0.0005
	kvTokenBytes                  = 3 * 2 * 2 * 16 * 2 // of shape: layers, keys and values, heads, their size, bf16
)

// shape is a model whose KV is small.
func shape() model.Spec {
	return model.Spec{Name: "swarm", Digest: "d1", VocabSize: 1000, HiddenSize: 64, Layers: 3, Heads: 4, KVHeads: 2, HeadSize: 16, ContextTokens: 2 * maxTokens, BOS: 1, EOS: []int32{2}}
}

// config is the cluster.
func (s *Script) config() simulate.Config {
	mode, _ := api.Parse[inferencev1.Mode](s.Mode)
	c := simulate.Config{
		Spec: shape(), BlockTokens: s.BlockTokens, Seed: s.Seed, Routers: s.Routers, Mode: mode, CheckContext: true, Check: true,
		Network: simulate.Network{Latency: ms(s.LatencyMs), LocalLatency: 10 * time.Microsecond, BytesPerSecond: s.BytesPerS},
	}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.Routing.RegisterFlags(fs, "")
	c.Limits.RegisterFlags(fs, "")
	c.Routing.Policy, c.Routing.QueueLimit, c.Routing.TenantMaxRequests, c.Routing.HedgeShare = s.Policy, s.QueueLimit, s.TenantMost, s.HedgeShare
	for _, w := range s.Workers {
		m := &simulate.Worker{
			ID: w.ID, Host: w.Host, Role: controlv1.Role_ROLE_DECODE, Profile: latency.Model{BaseMs: w.BaseMs, PerTokenMs: perTokenMs, PerContextTokenMs: perContextTokenMs}.Profile(),
			Blocks: w.Blocks, MaxBatchTokens: w.BatchTokens, MaxSequences: w.Sequences, TransferLease: ms(w.LeaseMs), TransferCreditBytes: w.Credit, TransferChunkBytes: w.KVChunk, Jitter: w.Jitter,
		}
		m.RegisterFlags(pflag.NewFlagSet("", pflag.ContinueOnError), "", "decode", worker.DefaultDecodeChunkTokens)
		if w.Prefill {
			m.Role = controlv1.Role_ROLE_PREFILL
		}
		m.ChunkTokens, m.MaxWaiting, m.OutputShare = w.Chunk, w.Waiting, w.OutputShare
		c.Workers = append(c.Workers, m)
	}
	for _, f := range s.Faults {
		c.Events = append(c.Events, f.events()...)
	}
	return c
}

// events are a fault and its end: whatever is broken is mended in time.
func (f Fault) events() []simulate.Event {
	var begin, end simulate.Action
	switch f.Kind {
	case kill:
		begin, end = simulate.Kill{Worker: f.Worker}, simulate.Start{Worker: f.Worker}
	case drain:
		begin, end = simulate.Drain{Worker: f.Worker}, simulate.Undrain{Worker: f.Worker}
	case slow:
		begin, end = simulate.Slow{Worker: f.Worker, Factor: f.Factor, Unmeasured: f.Unmeasured}, simulate.Slow{Worker: f.Worker, Factor: 1}
	case cut:
		between := [2]simulate.Hosts{{f.A}, {f.B}}
		begin, end = simulate.Cut{Between: between}, simulate.Heal{Between: between}
	case fail:
		begin = simulate.Fail{Worker: f.Worker}
	case corrupt:
		begin = simulate.Corrupt{Worker: f.Worker}
	case mute:
		begin, end = simulate.Mute{Worker: f.Worker}, simulate.Unmute{Worker: f.Worker}
	case etcd:
		begin, end = simulate.EtcdAway{}, simulate.EtcdBack{}
	}
	events := []simulate.Event{{At: ms(f.AtMs), Do: begin}}
	if end != nil {
		events = append(events, simulate.Event{At: ms(f.AtMs + f.ForMs), Do: end})
	}
	return events
}

// token is a token of a prompt: one of a text, at a position.
func token(text uint64, position int) uint32 {
	x := (text+1)*0x9e3779b97f4a7c15 ^ uint64(position+1)*0xbf58476d1ce4e5b9
	x ^= x >> 31
	return uint32(x*0x94d049bb133111eb>>40)%900 + 50
}

// request is what a client sends.
func (r Request) request() *workload.Request {
	q := &workload.Request{Due: ms(r.AtMs), MaxTokens: r.Tokens, Exact: true, Temperature: 1, Seed: r.Seed, Tenant: r.Tenant, Priority: r.Priority, CacheSalt: r.Salt}
	for i := range r.Shared {
		q.Prompt.TokenIDs = append(q.Prompt.TokenIDs, token(uint64(r.Family), i))
	}
	for i := range r.Own {
		q.Prompt.TokenIDs = append(q.Prompt.TokenIDs, token(1000+r.Seed, i))
	}
	return q
}
