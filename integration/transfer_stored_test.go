package integration_test

import (
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/integration/faultstest"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
)

// Over shared memory the engine itself stores what it computes in the decode worker's pages, and
// nothing of it is copied. The tokens are those of one worker alone.
func TestStoredByTheEngine(t *testing.T) {
	weights := fableWeights(t)
	for _, network := range faultstest.Transports() {
		t.Run(network, func(t *testing.T) {
			g := newRigOf(t, network, weights.Spec(), func(_ *gate, blocks int) (engine.Engine, error) {
				e, err := weights.NewEngine(cpu.Config{
					KVBytes: int64(blocks+1) * fablePageBytes, BlockTokens: 2 * rigBlockTokens, MaxBatchTokens: 256, MaxSequences: 8, SharedKV: network == "shm",
				})
				if err == nil {
					t.Cleanup(func() { _ = e.Close() }) // after its worker is gone
				}
				return e, err
			})
			want := generate(t, g.client, g.request(7000, disaggregated)).Tokens
			sent := sum(t, g.prefill.metrics, "tandem_kvtransfer_sent_bytes_total")
			stored := sum(t, g.prefill.metrics, "tandem_kvtransfer_stored_bytes_total")
			if network != "shm" && stored != 0 || network == "shm" && stored != sent || sent == 0 {
				t.Errorf("%g of %g bytes are stored by the engine", stored, sent)
			}
			// Blocks that the prefill worker has in its cache, and a new decode worker has not, are copied.
			g.startDecode().kill()
			if again := generate(t, g.client, g.request(7000, disaggregated)).Tokens; !slices.Equal(again, want) {
				t.Errorf("tokens %v, before %v", again, want)
			}
			more := sum(t, g.prefill.metrics, "tandem_kvtransfer_stored_bytes_total") - stored
			if all := sum(t, g.prefill.metrics, "tandem_kvtransfer_sent_bytes_total") - sent; network == "shm" && (more <= 0 || more >= all) {
				t.Errorf("with a cached prefix %g of %g bytes are stored by the engine", more, all)
			}
			if alone := generate(t, g.client, g.request(7000, aggregated)).Tokens; !slices.Equal(alone, want) {
				t.Errorf("tokens %v, of one worker %v", want, alone)
			}
		})
	}
}

// sum is a counter, all its labels together.
func sum(t *testing.T, metrics prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	total := 0.0
	for _, family := range families {
		if family.GetName() == name {
			for _, m := range family.GetMetric() {
				total += m.GetCounter().GetValue()
			}
		}
	}
	return total
}
