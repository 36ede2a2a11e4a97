package evidence

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/router"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/simulate"
)

// scale simulates very many workers, and times what a router does beside so many.
type scale struct{}

func (scale) Name() string  { return "scale" }
func (scale) Title() string { return "Two thousand workers" }

const (
	scaleRouters = 4
	// scaleRate is what each worker gets, requests a second.
	scaleRate = 2
	// scalePrefix is how many tokens of a prompt are one of scalePrefixes.
	scalePrefix, scalePrefixes = 512, 2000
	// scaleBlock is the tokens of a block.
	scaleBlock = 32
	// scaleWarmup is the time until about as many requests end as come.
	scaleWarmup = time.Second
)

// scaleScenario is the text of very many H200s that serve a model of 8 billion parameters. KV of its
// 32 layers is sent in eight parts of four layers each, which makes fewer events.
func scaleScenario(o Options, workers int, lasts time.Duration) string {
	prefill := workers * 3 / 8
	return fmt.Sprintf(`model: {name: bench-8b, layers: 8, hidden-size: 4096, heads: 32, kv-heads: 8, head-size: 512, ffn-size: 14336, vocab-size: 128256, context-tokens: 32768}
profile: %q
block-tokens: %d
routers: %d
router: {tenant-max-requests: 1000000, transfer-bytes-per-second: 40000000000}
network: {latency: 50us, bandwidth: 40GB/s}
pools:
  prefill: {role: prefill, count: %d, kv-memory: 16GiB, max-batch-tokens: 8192, chunk-tokens: 2048}
  decode: {role: decode, count: %d, kv-memory: 16GiB}
traffic: {rate: 1, prompt-tokens: "lognormal:512,300", output-tokens: "lognormal:64,40", shared-prefix-tokens: %d, shared-prefixes: %d, warmup: %v, duration: %v, max-in-flight: 1000000, slo: "ttft:p90<500ms,tpot:p90<30ms", send-slo: true}
`, o.profile("h200-bench-8b.json"), scaleBlock, scaleRouters, prefill, workers-prefill, scalePrefix, scalePrefixes, scaleWarmup, lasts)
}

// scaled is what a cluster of a size did while requests came, after the warm-up.
type scaled struct {
	workers int
	seconds float64
	warmup  int // requests before
	figures report.Figures
	signals simulate.Signals
	blocks  int // that a router knows, the mean
	wall    time.Duration
	memory  uint64 // of this process so far, bytes
}

func measureScale(ctx context.Context, o Options, workers int, lasts time.Duration) (s scaled, err error) {
	t, err := newTrial(o.Profiles, scaleScenario(o, workers, lasts))
	if err != nil {
		return s, err
	}
	began := time.Now()
	var before simulate.Signals
	t.begins = func(c *simulate.Cluster) { before = c.Signals() }
	t.ends = func(c *simulate.Cluster) {
		s.signals = c.Signals().Since(before)
		for _, n := range c.IndexedBlocks() {
			s.blocks += n / scaleRouters
		}
	}
	s.workers, s.seconds = workers, lasts.Seconds()
	if s.figures, err = t.at(ctx, scaleRate*float64(workers), 0); err != nil {
		return s, err
	}
	s.warmup = len(t.last.Records) - s.figures.Requests
	s.wall = time.Since(began)
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	s.memory = memory.Sys
	o.say(fmt.Sprintf("scale: %d workers, %d requests in %.0f s", workers, s.figures.Requests, s.wall.Seconds()))
	return s, nil
}

// hits is which share of prompt tokens came from a prefix cache; ideal, if no prefix was ever computed
// twice.
func (s scaled) hits() (share, ideal float64) {
	n := float64(s.figures.Requests)
	different := func(draws float64) float64 { return scalePrefixes * (1 - math.Pow(1-1./scalePrefixes, draws)) } // on average
	first := different(float64(s.warmup)+n) - different(float64(s.warmup))
	return s.figures.CachedTokensMean / s.figures.PromptTokensMean, (1 - first/n) * scalePrefix / s.figures.PromptTokensMean
}

// rates are messages that are published a second, and decisions of each router.
func (s scaled) rates() (messages, decisions float64) {
	return float64(s.signals.Messages()) / s.seconds, float64(s.signals.Decisions) / s.seconds / scaleRouters
}

// indexBytes is what the index takes for a block, of so many, each at so many of the workers.
func indexBytes(blocks, workers, holders int) float64 {
	random := rand.New(rand.NewPCG(1, 2))
	prompts := make([][]kvcache.Hash, blocks/64)
	for i := range prompts {
		prompts[i] = make([]kvcache.Hash, 64)
		for j := range prompts[i] {
			prompts[i][j] = kvcache.Hash(random.Uint64())
		}
	}
	before := heapBytes()
	x := kvcache.NewIndex(blocks)
	sequences := make([]uint64, workers)
	for i := range workers { // each begins with an empty cache
		x.Snapshot(fmt.Sprint(i), 1, 0, nil)
	}
	for _, p := range prompts {
		for range holders {
			w := random.IntN(workers)
			sequences[w]++
			x.Apply(fmt.Sprint(w), 1, sequences[w], p, nil)
		}
	}
	bytes := float64(heapBytes() - before)
	n := x.Len()
	runtime.KeepAlive(prompts)
	return bytes / float64(max(n, 1))
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Run measures.
func (scale) Run(ctx context.Context, o Options) (*Result, error) {
	sizes, lasts := []int{2000, 1000, 500}, 5*time.Second
	cores, blocks, decisions := []int{64, 256, 1000, 2000, 4000}, router.MaxPrefixBlocks, 10000
	if o.Small {
		sizes, lasts = []int{200}, 2*time.Second
		cores, blocks, decisions = []int{64}, 1<<16, 1000
	}
	all := make([]scaled, len(sizes))
	if err := each(ctx, len(sizes), func(i int) (err error) {
		all[i], err = measureScale(ctx, o, sizes[i], lasts)
		return err
	}); err != nil {
		return nil, err
	}
	if o.Long { // a million requests, alone for their memory
		s, err := measureScale(ctx, o, sizes[0], 250*time.Second)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	timed := make([]*router.Result, len(cores))
	for i, workers := range cores { // one after the other: they are timed
		var err error
		timed[i], err = router.MeasureCore(ctx, router.Plan{Workers: workers, PrefixBlocks: blocks, Streams: workers, Tokens: 64, Gap: 10 * time.Millisecond, Decisions: decisions})
		if err != nil {
			return nil, fmt.Errorf("the routing core beside %d workers: %w", workers, err)
		}
	}
	return scaleResult(all, timed, indexBytes(blocks, sizes[0], 2)), nil
}
