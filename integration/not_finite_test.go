package integration_test

import (
	"bytes"
	"context"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/integration/faultstest"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// faultyEngine is an engine of a machine that is broken.
type faultyEngine struct {
	engine.Engine
	pages faultyPages
	ill   atomic.Bool // what it computes is not finite
}

func (e *faultyEngine) Pages() engine.Pages { return &e.pages }

func (e *faultyEngine) NotFinite(slice []byte, n int) int {
	return e.Engine.(engine.Checking).NotFinite(slice, n)
}

func (e *faultyEngine) Step(ctx context.Context, batch engine.Batch) (engine.Output, error) {
	batch.Mirrors = nil // what is broken is how pages are read
	out, err := e.Engine.Step(ctx, batch)
	for i := range out.Tokens {
		if e.ill.Load() {
			out.Tokens[i] = sampler.None
		}
	}
	return out, err
}

// faultyPages returns NaN for the keys and values of a layer. A sender that reads them adds
// a correct checksum.
type faultyPages struct {
	engine.Pages
	ill atomic.Bool
}

const illLayer = 2

// Shares and File implement engine.Sharing.
func (p *faultyPages) Shares() bool { return p.File() != nil }
func (p *faultyPages) File() *os.File {
	if shared, can := p.Pages.(engine.Sharing); can {
		return shared.File()
	}
	return nil
}

func (p *faultyPages) View(layer int, block kvcache.BlockID) []byte {
	if p.ill.Load() && layer == illLayer {
		return bytes.Repeat([]byte{0xff}, p.Layout().SliceBytes)
	}
	return p.Pages.View(layer, block)
}

// notFiniteRig is a rig with two prefill workers, of which `bad` can be made to send what is
// not finite.
type notFiniteRig struct {
	*rig
	bad, good *rigWorker
	engines   []*faultyEngine // as they were made: bad, decode, good
	reference *rig
}

// fableWeights are those of the bundled model, for two threads, until the test ends.
func fableWeights(t *testing.T) *cpu.Weights {
	t.Helper()
	m, err := model.Open("../models/fable", model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	weights, err := cpu.Load(t.Context(), m, cpu.Config{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := weights.Close(); err != nil {
			t.Error(err)
		}
		_ = m.Close()
	})
	return weights
}

func newNotFiniteRig(t *testing.T, network string) *notFiniteRig {
	t.Helper()
	weights := fableWeights(t)
	g := &notFiniteRig{}
	newEngine := func(_ *gate, blocks int) (engine.Engine, error) {
		e, err := weights.NewEngine(cpu.Config{KVBytes: int64(blocks+1) * fablePageBytes, BlockTokens: 2 * rigBlockTokens, MaxBatchTokens: 256, MaxSequences: 8, SharedKV: network == "shm"})
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = e.Close() }) // after its worker is gone
		faulty := &faultyEngine{Engine: e, pages: faultyPages{Pages: e.Pages()}}
		g.engines = append(g.engines, faulty)
		return faulty, nil
	}
	g.reference = newRigOf(t, network, weights.Spec(), newEngine)
	g.engines = nil
	g.rig = newRigOf(t, network, weights.Spec(), newEngine)
	g.bad = g.startPrefill()
	g.good = g.rig.prefill
	g.use(2, g.bad, g.good)
	return g
}

// use lets the router have these prefill workers, and waits until it has n.
func (g *notFiniteRig) use(n int, prefill ...*rigWorker) {
	g.t.Helper()
	var records []*controlv1.WorkerRecord
	for _, w := range append(prefill, g.decode) {
		records = append(records, w.record)
	}
	g.members.set(records)
	clustertest.Await(g.t, func() string {
		usable, err := g.client.Usable(prefillRole)
		if err != nil || len(usable) != n {
			return "the router has other prefill workers"
		}
		return ""
	})
}

// want is what a request gives where nothing is broken.
func (g *notFiniteRig) want(number int) []uint32 {
	return generate(g.t, g.reference.client, g.request(number, aggregated)).Tokens
}

// KV that arrives whole and is not finite gives no token to any client. Where there is
// another prefill worker its requests have the tokens of a mesh in which nothing is broken;
// where there is none they end with a reason, and those that need no transfer go on.
func TestMeshSendsWhatIsNotFinite(t *testing.T) {
	longtest.Only(t)
	t.Parallel() // much of it is waiting
	for _, network := range faultstest.Transports() {
		t.Run(network, func(t *testing.T) {
			g := newNotFiniteRig(t, network)
			g.engines[0].pages.ill.Store(true)
			retries := uint32(0)
			for number := range 12 {
				want := g.want(7000 + number)
				c := g.call(t.Context(), g.request(7000+number, disaggregated))
				c.check(t, want, codes.OK)
				retries += c.result.Finished.GetRoute().GetRetries()
			}
			t.Logf("%d requests were tried again", retries) // as the router chose
			g.good.kill()
			g.use(1, g.bad)
			for number := range 4 {
				want := g.want(7100 + number)
				c := g.call(t.Context(), g.request(7100+number, disaggregated))
				c.check(t, want, codes.DataLoss)
				if rpc.Reason(c.err) != "NOT_FINITE" || len(c.result.Tokens) == len(want) {
					t.Errorf("%d tokens, then %v", len(c.result.Tokens), c.err)
				}
				c = g.call(t.Context(), g.request(7100+number, aggregated))
				c.check(t, want, codes.OK)
			}
			for _, w := range []*rigWorker{g.bad, g.decode} {
				if w.driver.Draining() {
					t.Errorf("%s leaves", w.record.GetId())
				}
			}
			g.engines[0].pages.ill.Store(false)
			for number := range 3 {
				g.call(t.Context(), g.request(7200+number, disaggregated)).check(t, g.want(7200+number), codes.OK)
			}
			freeAfter(t, time.Now(), g.bad.held, g.decode.held)
		})
	}
}

// A worker whose own arithmetic is not finite gives no token to any client, and leaves;
// another one goes on in its place.
func TestMeshComputesWhatIsNotFinite(t *testing.T) {
	longtest.Only(t)
	t.Parallel() // much of it is waiting
	for _, side := range []string{"prefill", "decode"} {
		t.Run(side, func(t *testing.T) {
			g := newNotFiniteRig(t, "tcp")
			broken, e := g.bad, g.engines[0]
			if side == "decode" {
				broken, e = g.decode, g.engines[1]
			}
			for number := range 3 {
				g.call(t.Context(), g.request(7300+number, disaggregated)).check(t, g.want(7300+number), codes.OK)
			}
			broken.mayLeave(worker.ErrNotFinite)
			e.ill.Store(true)
			for number := range 8 {
				allowed := []codes.Code{codes.OK, codes.DataLoss, codes.Unavailable}
				if side == "prefill" {
					allowed = allowed[:1] // there is another one
				}
				g.call(t.Context(), g.request(7400+number, disaggregated)).check(t, g.want(7400+number), allowed...)
			}
			if side == "prefill" { // where the router has no other one, it is asked
				g.good.kill()
			}
			for number := 0; !broken.driver.Draining(); number++ {
				if number == 5 {
					t.Fatal("the broken worker stays")
				}
				g.call(t.Context(), g.request(7450+number, disaggregated)).check(t, g.want(7450+number), codes.DataLoss, codes.Unavailable)
			}
			if side == "prefill" {
				g.startPrefill()
				g.good = g.rig.prefill
			} else {
				g.startDecode()
			}
			g.use(1, g.good)
			clustertest.Await(t, func() string {
				if usable, err := g.client.Usable(decodeRole); err != nil || len(usable) != 1 || usable[0] != g.decode.record.GetId() {
					return "the router has another decode worker"
				}
				return ""
			})
			for number := range 3 {
				g.call(t.Context(), g.request(7500+number, disaggregated)).check(t, g.want(7500+number), codes.OK)
			}
			freeAfter(t, time.Now(), g.good.held, g.decode.held)
		})
	}
}
