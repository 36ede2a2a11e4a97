package integration_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-serving/tandem/integration/faultstest"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
)

// meshFlips are how many bits are turned over on each transport.
const meshFlips = 12

// A bit that is turned over on its way between two workers costs time at most: the
// request ends with the tokens of a model that worked alone, or says that it failed.
func TestMeshCorruption(t *testing.T) {
	weights := fableWeights(t)
	for _, network := range faultstest.Transports() {
		t.Run(network, func(t *testing.T) {
			t.Parallel() // much of it is waiting
			newEngine := func(_ *gate, blocks int) (engine.Engine, error) {
				e, err := weights.NewEngine(cpu.Config{
					KVBytes: int64(blocks+1) * fablePageBytes, BlockTokens: 2 * rigBlockTokens, MaxBatchTokens: 256, MaxSequences: 8, SharedKV: network == "shm",
				})
				if err == nil {
					t.Cleanup(func() { _ = e.Close() }) // after its worker is gone
				}
				return e, err
			}
			g := newRigOf(t, network, weights.Spec(), newEngine)
			reference := newRigOf(t, network, weights.Spec(), newEngine)
			random := rand.New(rand.NewPCG(3, 4))
			var frames []frameShape
			number, happened, failed := 5000, 0, 0
			for happened < meshFlips && !t.Failed() {
				number++
				want := generate(t, reference.client, g.request(number, aggregated)).Tokens
				if frames == nil {
					frames = g.framesOf(number)
					continue
				}
				flip := g.decode.proxy.Flip(anyBit(random, frames))
				c := g.call(t.Context(), g.request(number, disaggregated))
				c.check(t, want, codes.OK, codes.Unavailable)
				// A sender that cannot hear its receiver waits for a lease before it gives
				// up.
				freeAfter(t, time.Now(), g.held)
				select {
				case <-flip.Done():
					happened++
				default: // fewer frames went by than before
				}
				if c.err != nil {
					failed++
				}
			}
			if !t.Failed() && failed >= happened {
				t.Errorf("%d bits made %d requests fail: none was done again", happened, failed)
			}
			t.Logf("%d bits: %d requests failed, all others had the right tokens", happened, failed)
		})
	}
}

// fablePageBytes is what a block of 32 tokens of the bundled model takes.
const fablePageBytes = 4 * 2 * 2 * 64 * 32 * 2

// framesOf is what a request puts on the connection for KV.
func (g *rig) framesOf(number int) []frameShape {
	g.t.Helper()
	var mu sync.Mutex
	var seen []frameShape
	var sent [2]int
	g.decode.proxy.Watch(func(d faultstest.Direction, frame []byte, ended []string) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, frameShape{d, sent[d], len(frame), faultstest.FrameName(frame, ended)})
		sent[d]++
	})
	defer g.decode.proxy.Watch(nil)
	generate(g.t, g.client, g.request(number, disaggregated))
	freeAfter(g.t, time.Now(), g.held)
	mu.Lock()
	defer mu.Unlock()
	return seen
}
