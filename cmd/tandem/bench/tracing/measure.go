// Package tracing measures what tracing costs: the CPU time that a mesh spends
// on a request with tracing at some share and without, from two meshes of
// processes that serve the same requests in turns.
//
// Commands import it. It starts the meshes, a collector that counts spans, and
// the clients that send; Measure ends all of them before it returns.
package tracing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/bounds"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/processes"
	"github.com/tandem-serving/tandem/loadtest/client"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// Options say what is measured.
type Options struct {
	// Model is the model's directory; empty: the bundled one.
	Model string
	// Share of the requests that one of the meshes traces, 0 to 1.
	Share float64
	// Pairs of blocks, 6 at least, and Requests in each block.
	Pairs, Requests            int
	Concurrency                int
	PromptTokens, OutputTokens int
	// StepMs is how long the simulated engines take for a step, in milliseconds.
	StepMs float64
	// Progress is told of each pair, if set.
	Progress func(pair int, tracedMs, untracedMs float64)
}

// minPairs is what Student's t is worth something with.
const minPairs = 6

// Validate says which option is out of range, by its flag.
func (o Options) Validate() error {
	switch {
	case !(o.Share >= 0 && o.Share <= 1): // so that NaN is refused too
		return fmt.Errorf("--sample: %v is not a share: give 0 to 1", o.Share)
	case !(o.StepMs > 0 && o.StepMs <= 1000):
		return fmt.Errorf("--step-ms: %v is outside 0 to 1000", o.StepMs)
	}
	return cmp.Or(
		bounds.Within("--pairs", o.Pairs, minPairs, 10_000),
		bounds.Within("--requests", o.Requests, 1, 1_000_000),
		bounds.Within("--concurrency", o.Concurrency, 1, 1024),
		bounds.Within("--prompt", o.PromptTokens, 1, 1<<20),
		bounds.Within("--output", o.OutputTokens, 1, 1<<20),
	)
}

// Result is what was measured.
type Result struct {
	Share            float64 `json:"sample"`
	Pairs            int     `json:"pairs"`
	RequestsPerBlock int     `json:"requests_per_block"`
	Concurrency      int     `json:"concurrency"`
	PromptTokens     int     `json:"prompt_tokens"`
	OutputTokens     int     `json:"output_tokens"`
	// TracedMs and UntracedMs are CPU milliseconds a request, of router and workers
	// together.
	TracedMs   Interval `json:"traced_cpu_ms_per_request"`
	UntracedMs Interval `json:"untraced_cpu_ms_per_request"`
	// ApartPercent is by how much a pair's first is above its second.
	ApartPercent Interval `json:"apart_percent"`
	// Spans came to the collector.
	Spans int64 `json:"spans"`
	// WallSeconds is how long the pairs took.
	WallSeconds float64 `json:"wall_seconds"`
}

type side struct {
	mesh   *processes.Mesh
	client client.Client
}

const startTimeout = time.Minute

func startSide(ctx context.Context, arguments []string) (*side, error) {
	m, err := processes.Start(ctx, processes.Plan{Prefill: 1, Decode: 1, Arguments: arguments, StartTimeout: startTimeout})
	if err != nil {
		return nil, err
	}
	c, err := client.NewTandem(client.TandemConfig{Address: m.Address, Mode: inferencev1.Mode_MODE_DISAGGREGATED})
	if err != nil {
		return nil, errors.Join(err, m.Stop())
	}
	return &side{m, c}, nil
}

func (s *side) stop() error { return errors.Join(s.client.Close(), s.mesh.Stop()) }

// cpuSeconds is what the mesh has used, all parts together.
func (s *side) cpuSeconds() (float64, error) {
	if err := s.mesh.Failed(); err != nil {
		return 0, err
	}
	sum := 0.0
	parts := s.mesh.CPUSeconds()
	for _, seconds := range parts {
		sum += seconds
	}
	if len(parts) != 3 {
		return 0, fmt.Errorf("the CPU time of only %d of 3 processes is known", len(parts))
	}
	return sum, nil
}

// Measure starts two meshes with simulated engines, one that traces and one that
// does not, and sends both the same requests in turns. The CPU time of a pair is
// what each mesh used while both had their block: spans are sent up to five
// seconds after their request, and what a mesh uses while it has nothing to do
// is then in both figures alike.
func Measure(ctx context.Context, o Options) (_ *Result, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	spans, err := startCollector()
	if err != nil {
		return nil, fmt.Errorf("start a collector: %w", err)
	}
	defer spans.stop()
	common := []string{"--engine", "simulated", "--simulated-base-ms", strconv.FormatFloat(o.StepMs, 'g', -1, 64), "--simulated-per-token-ms", "0", "--simulated-per-context-token-ms", "0"}
	if o.Model != "" {
		common = append(common, "--model", o.Model)
	}
	var sides [2]*side // traced, untraced
	defer func() {
		for _, s := range sides {
			if s != nil {
				err = errors.Join(err, s.stop())
			}
		}
	}()
	for i, arguments := range [][]string{
		{"--trace-endpoint", spans.address, "--trace-sample", strconv.FormatFloat(o.Share, 'g', -1, 64)},
		{"--trace-endpoint", "none"},
	} {
		s, err := startSide(ctx, append(append([]string(nil), common...), arguments...))
		if err != nil {
			return nil, fmt.Errorf("start a mesh: %w", err)
		}
		sides[i] = s
	}
	result, err := o.compare(ctx, sides)
	if err != nil {
		return nil, err
	}
	result.Spans = spans.spans.Load()
	if o.Share > 0 && result.Spans == 0 {
		return nil, errors.New("no span arrived: send more --requests, or raise --sample")
	}
	return result, nil
}

// compare sends the pairs of blocks, the first of which warms up.
func (o Options) compare(ctx context.Context, sides [2]*side) (*Result, error) {
	served, err := sides[0].client.Describe(ctx)
	if err != nil {
		return nil, err
	}
	vocabulary := max(1, served.VocabularySize-16) // the last ones may be special
	var traced, untraced, apart []float64
	var before [2]float64
	began := time.Now()
	for pair := range o.Pairs + 1 {
		b := block{number: uint64(pair), requests: o.Requests, concurrency: o.Concurrency, promptTokens: o.PromptTokens, maxTokens: o.OutputTokens, vocabulary: vocabulary, timeout: o.requestTimeout()}
		for turn := range 2 {
			s := sides[(turn+pair)%2] // who goes first changes
			if err := b.send(ctx, s.client); err != nil {
				return nil, errors.Join(err, s.mesh.Failed())
			}
		}
		var used [2]float64
		for i, s := range sides {
			total, err := s.cpuSeconds()
			if err != nil {
				return nil, err
			}
			used[i], before[i] = (total-before[i])/float64(o.Requests)*1e3, total
		}
		if pair == 0 {
			began = time.Now()
			continue
		}
		traced, untraced = append(traced, used[0]), append(untraced, used[1])
		apart = append(apart, (used[0]/used[1]-1)*100)
		if o.Progress != nil {
			o.Progress(pair, used[0], used[1])
		}
	}
	return &Result{
		Share: o.Share, Pairs: o.Pairs, RequestsPerBlock: o.Requests, Concurrency: o.Concurrency, PromptTokens: o.PromptTokens, OutputTokens: o.OutputTokens,
		TracedMs: intervalOf(traced), UntracedMs: intervalOf(untraced), ApartPercent: intervalOf(apart),
		WallSeconds: time.Since(began).Seconds(),
	}, nil
}

// requestTimeout is what a request may take on a machine that is slow: a minute, and
// ten times the steps of a prompt that is computed a token at a time, and of the answer;
// not so long that it could not be counted.
func (o Options) requestTimeout() time.Duration {
	steps := 10 * o.StepMs * float64(o.PromptTokens+o.OutputTokens) * float64(time.Millisecond)
	return time.Minute + time.Duration(min(steps, float64(1000*time.Hour)))
}

// collector takes spans and counts them, as a collector would that keeps none.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer
	address string
	server  *grpc.Server
	serving sync.WaitGroup
	spans   atomic.Int64
}

// startCollector serves on a free port until stop.
func startCollector() (*collector, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &collector{address: listener.Addr().String(), server: grpc.NewServer()}
	collectorv1.RegisterTraceServiceServer(c.server, c)
	c.serving.Go(func() { _ = c.server.Serve(listener) }) // ends with stop
	return c, nil
}

// Export counts.
func (c *collector) Export(_ context.Context, q *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	for _, resource := range q.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			c.spans.Add(int64(len(scope.GetSpans())))
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func (c *collector) stop() {
	c.server.Stop()
	c.serving.Wait()
}
