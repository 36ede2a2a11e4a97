package router

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/routing"
)

// decisionModel is the one that decisions are for.
const decisionModel = "bench"

// promptBlocks are the blocks of a prompt that a decision is timed with.
const promptBlocks = decisionTokens / blockTokens

// decider is the routing core with workers, blocks in their prefix caches, and requests that
// run on them.
type decider struct {
	plan    Plan
	core    *routing.Router
	now     time.Time
	random  *rand.Rand
	workers []*controlv1.WorkerRecord
	prompts [][]kvcache.Hash // of which workers have leading blocks
	reports []uint64         // sequence numbers by worker
	running []string         // in the order in which they came
	asked   int
	// indexed is how long the index took, in all and the longest part.
	indexed, indexedMost time.Duration
}

func newDecider(p Plan) *decider {
	var config routing.Config
	config.RegisterFlags(pflag.NewFlagSet("", pflag.ContinueOnError), "")
	config.Models = []routing.Model{{Name: decisionModel, Digest: modelDigest}}
	config.TenantMaxRequests, config.DefaultClass = 1<<20, routing.ClassBatch
	d := &decider{
		plan: p, now: time.Unix(1e9, 0), random: rand.New(rand.NewPCG(1, 2)),
		workers: records(p, decisionModel), reports: make([]uint64, p.Workers),
	}
	d.core = routing.New(config, d.random)
	d.handle(routing.ViewChanged{Workers: d.workers, Live: true})
	// Each prompt is on one worker; the last may be there in part.
	held := make([][]uint64, p.Workers)
	for left := p.PrefixBlocks; left > 0; left -= promptBlocks {
		prompt := make([]kvcache.Hash, promptBlocks)
		for i := range prompt {
			prompt[i] = kvcache.Hash(d.random.Uint64())
		}
		at := len(d.prompts) % p.Workers
		held[at] = append(held[at], kvcache.HashValues(prompt[:min(left, promptBlocks)])...)
		d.prompts = append(d.prompts, prompt)
	}
	for i, w := range d.workers {
		for _, part := range routing.Listed(ref(w), &workerv1.ListBlocksResponse{Epoch: w.GetEpoch(), BlockHashes: held[i]}) {
			began := time.Now()
			d.handle(part)
			took := time.Since(began)
			d.indexed, d.indexedMost = d.indexed+took, max(d.indexedMost, took)
		}
		d.handle(routing.Connected{Worker: ref(w), Record: w, Connection: uint64(i + 1)})
		d.report(i)
	}
	return d
}

func ref(w *controlv1.WorkerRecord) routing.Ref {
	return routing.Ref{ID: w.GetId(), Epoch: w.GetEpoch()}
}

func (d *decider) handle(event routing.Event) []routing.Action { return d.core.Handle(d.now, event) }

// report is the load report of a worker.
func (d *decider) report(i int) {
	d.reports[i]++
	w := d.workers[i]
	d.handle(routing.LoadReported{Report: &controlv1.LoadReport{
		Origin: &controlv1.Origin{Id: w.GetId(), Epoch: w.GetEpoch(), Sequence: d.reports[i]}, Role: w.GetRole(), BlocksFree: freeSpace / 2, BlocksTotal: freeSpace,
		StepTime: &controlv1.StepTimeModel{BaseMs: 10, PerTokenMs: .05, PerContextTokenMs: 1e-5, Samples: 1000, MostTokens: maxStepBatch},
	}})
}

// prompt is the blocks of the next one: some begin as one that a worker has.
func (d *decider) prompt() []kvcache.Hash {
	hashes := make([]kvcache.Hash, promptBlocks)
	shared := 0
	if len(d.prompts) > 0 {
		shared = copy(hashes, d.prompts[d.random.IntN(len(d.prompts))][:d.random.IntN(promptBlocks+1)])
	}
	for i := shared; i < len(hashes); i++ {
		hashes[i] = kvcache.Hash(d.random.Uint64())
	}
	return hashes
}

// decide hands in a request and returns how long the choice of its workers took.
func (d *decider) decide() (time.Duration, error) {
	key := routing.BlockKey{}
	for _, k := range d.core.BlockKeys(decisionModel, routing.Version{}) {
		key = k
	}
	d.asked++
	id := strconv.Itoa(d.asked)
	event := routing.Arrived{Request: routing.Request{
		ID: id, Tenant: "bench", Model: decisionModel, Mode: inferencev1.Mode_MODE_AUTO, Arrived: d.now, Tokens: decisionTokens, MaxNew: d.plan.Tokens,
		Hashes: map[routing.BlockKey][]kvcache.Hash{key: d.prompt()},
	}}
	began := time.Now()
	actions := d.core.Handle(d.now, event)
	took := time.Since(began)
	for _, action := range actions {
		switch a := action.(type) {
		case routing.Dispatch:
			d.running = append(d.running, a.ID)
			d.taken(a)
			return took, nil
		case routing.Refuse:
			return 0, fmt.Errorf("the routing core refused a request: %w", &a.Refusal)
		}
	}
	return 0, fmt.Errorf("the routing core keeps a request waiting beside %d others on %d workers: pass more --workers or fewer --streams", len(d.running), d.plan.Workers)
}

// taken says that the workers began with a request at once.
func (d *decider) taken(a routing.Dispatch) {
	d.handle(routing.Taken{ID: a.ID, Role: controlv1.Role_ROLE_DECODE})
	if a.Prefill != (routing.Ref{}) {
		d.handle(routing.Taken{ID: a.ID, Role: controlv1.Role_ROLE_PREFILL})
	}
	d.handle(routing.PromptDone{ID: a.ID})
}

// end ends the oldest request.
func (d *decider) end() {
	d.handle(routing.Ended{ID: d.running[0], Served: true, Tokens: d.plan.Tokens, Decoding: time.Duration(d.plan.Tokens) * d.plan.Gap})
	d.running = d.running[1:]
}

// MeasureCore times the routing core alone, in this process: of a Plan it takes Workers,
// PrefixBlocks, Streams, Tokens, Gap and Decisions. Of the Result it sets what a decision, a load
// report and the index take.
func MeasureCore(ctx context.Context, p Plan) (*Result, error) {
	r := &Result{Workers: p.Workers, Streams: p.Streams, PrefixBlocks: p.PrefixBlocks}
	return r, decisions(ctx, p, r)
}

// decisions times Plan.Decisions of them, with as many requests running as there are streams.
func decisions(ctx context.Context, p Plan, r *Result) error {
	d := newDecider(p)
	for range p.Streams {
		if _, err := d.decide(); err != nil {
			return err
		}
	}
	const apart = 100 * time.Microsecond
	times := make([]time.Duration, p.Decisions)
	sum, reports := time.Duration(0), time.Duration(0)
	for i := range times {
		if i%1000 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		d.now = d.now.Add(apart)
		reported := time.Now()
		d.report(i % p.Workers)
		reports += time.Since(reported)
		var err error
		if times[i], err = d.decide(); err != nil {
			return err
		}
		began := time.Now()
		d.end()
		sum += times[i] + time.Since(began)
	}
	r.DecisionsPerS = float64(p.Decisions) / sum.Seconds()
	r.DecisionUsP50, r.DecisionUsP99 = microseconds(stats.QuantileOf(times, .5)), microseconds(stats.QuantileOf(times, .99))
	r.ReportUs = microseconds(reports) / float64(p.Decisions)
	r.IndexMs, r.IndexUsMax = stats.Milliseconds(d.indexed), microseconds(d.indexedMost)
	r.HashUsP50 = microseconds(stats.QuantileOf(hashing(d.random), .5))
	return nil
}

// hashing is how long it takes to hash the blocks of a prompt, a hundred times.
func hashing(random *rand.Rand) []time.Duration {
	tokens := make([]int32, decisionTokens)
	for i := range tokens {
		tokens[i] = random.Int32N(128_000)
	}
	root := kvcache.RootHash(modelDigest, "bench/1", "")
	times := make([]time.Duration, 100)
	for i := range times {
		began := time.Now()
		kvcache.BlockHashes(root, tokens, blockTokens)
		times[i] = time.Since(began)
	}
	return times
}
