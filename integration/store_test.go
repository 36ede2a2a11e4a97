package integration_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine/engines"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

// smallPool is the KV memory of 32 blocks of 32 tokens of the bundled model.
const smallPool = 2 << 20

// smallPools has a block store and two prefill workers. Their pools hold a few prompts,
// and their engines are so slow that fetching a block is faster than computing it, on a
// machine whose processors are taken as well.
func smallPools(o *mesh.UpOptions) {
	o.PrefillWorkers, o.DecodeWorkers, o.KVStores = 2, 1, 1
	o.Engine.Name, o.Engine.Simulated.RealPages = engines.Simulated, true
	o.Engine.Simulated.StepTime.PerTokenMs = 3
	o.Engine.KVMemory, o.Store.Memory, o.ContextTokens = smallPool, 256<<20, 512
}

// counted is what a counter says of a worker, of all if it has no name.
func counted(t testing.TB, m *clustertest.InProcess, name, worker string) (sum int) {
	t.Helper()
	families, err := m.Metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if worker == "" || label.GetName() == "worker" && label.GetValue() == worker {
					sum, found = sum+int(metric.GetCounter().GetValue()), true
					break
				}
			}
		}
	}
	if !found {
		t.Fatalf("there is no %s of %q", name, worker)
	}
	return sum
}

// A prefix that one prefill worker evicted is fetched from the block store by
// another, which never had it: the same tokens, and most of the prompt not computed
// again.
func TestPrefixEvictedOnOneWorkerIsFetchedByAnother(t *testing.T) {
	longtest.Only(t)
	t.Parallel() // much of it is waiting
	const (
		fetchedBlocks = "tandem_prefill_store_fetched_blocks_total"
		savedBlocks   = "tandem_worker_prefix_cache_saved_evictions_total"
		most          = 100 // prompts
	)
	m := clustertest.Start(t, smallPools)

	// Both workers measure their speed and fill their caches, until the one that had
	// the first prompt has evicted as many blocks that the store has.
	var prompts []string
	first := map[string]clustertest.Result{}
	gone, blocks := "", 0
	for i := 0; i < 12 || counted(t, m, savedBlocks, gone) < 2*blocks; i++ {
		if i == most {
			t.Fatalf("of %s the store has %d blocks that it evicted", gone, counted(t, m, savedBlocks, gone))
		}
		prompt := longPrompt(i)
		r := generate(t, m.Client, request(prompt, 20, 0, disaggregated))
		if i == 0 {
			gone, blocks = r.Finished.GetRoute().GetPrefill(), int(r.Finished.GetUsage().GetPromptTokens())/32
		}
		prompts, first[prompt] = append(prompts, prompt), r
	}
	if n := counted(t, m, fetchedBlocks, ""); n != 0 {
		t.Errorf("%d blocks were fetched of prompts that nobody had seen", n)
	}
	drained, err := m.Control.Drain(t.Context(), &controlv1.DrainRequest{WorkerId: gone})
	for err == nil {
		_, err = drained.Recv()
	}
	m.AwaitPool(t, controlv1.Role_ROLE_PREFILL, 1)

	whole := 0 // prompts of which all blocks came that may
	for _, prompt := range prompts {
		if first[prompt].Finished.GetRoute().GetPrefill() != gone {
			continue
		}
		before := counted(t, m, fetchedBlocks, "")
		r := generate(t, m.Client, request(prompt, 20, 0, disaggregated))
		if !slices.Equal(r.Tokens, first[prompt].Tokens) {
			t.Errorf("%q: %v, want %v", prompt, r.Tokens, first[prompt].Tokens)
		}
		fetched := counted(t, m, fetchedBlocks, "") - before
		timings, cached := r.Finished.GetTimings(), int(r.Finished.GetUsage().GetCachedTokens())
		// One that comes when nobody waits for it any more, on a busy machine, is not used.
		if fetched > 0 && timings.GetFetchNs() == 0 || cached != 0 && cached < 32*fetched {
			t.Errorf("%q: %d blocks fetched in %v, %d tokens cached", prompt, fetched, time.Duration(timings.GetFetchNs()), cached)
		}
		if fetched >= blocks-1 && cached > 0 {
			whole++
		}
		t.Logf("%d of %d blocks fetched in %v, TTFT %v; computed it was %v", fetched, blocks, time.Duration(timings.GetFetchNs()),
			time.Duration(timings.GetTtftNs()), time.Duration(first[prompt].Finished.GetTimings().GetTtftNs()))
	}
	if whole == 0 {
		t.Errorf("no prompt of %s was fetched", gone)
	}
	m.AwaitIdle(t)
}
