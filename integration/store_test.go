package integration_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/integration/cluster"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// smallPool is the KV memory of 32 blocks of 32 tokens of the bundled model.
const smallPool = 2 << 20

// smallPools is two prefill workers with room for a few prompts, whose engines are
// slow enough that a block is quicker fetched than computed, and a block store.
func smallPools(o *mesh.UpOptions) {
	o.PrefillWorkers, o.DecodeWorkers, o.KVStores = 2, 1, 1
	o.Engine.Name, o.Engine.SimulatedDevice.RealPages = mesh.EngineSimulated, true
	o.Engine.Simulated.PerTokenMs = 1
	o.Engine.KVMemory, o.Store.Memory, o.ContextTokens = smallPool, 256<<20, 512
}

// workerClient is the Worker service of a worker.
func workerClient(t *testing.T, m *cluster.Client, role controlv1.Role) workerv1.WorkerClient {
	t.Helper()
	workers, err := m.Workers(role)
	if err != nil || len(workers) == 0 {
		t.Fatalf("no worker of role %v: %v", role, err)
	}
	conn, err := rpc.Dial(workers[0].GetRecord().GetAddresses()[0], rpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return workerv1.NewWorkerClient(conn)
}

// A prefix that one prefill worker evicted is fetched from the block store by
// another: the same tokens, and most of the prompt not computed again.
func TestPrefixEvictedOnOneWorkerIsFetchedByAnother(t *testing.T) {
	m := cluster.Start(t, smallPools)
	store := workerClient(t, m.Client, controlv1.Role_ROLE_KVTRANSFER)

	// Both workers measure their speed and fill their caches.
	prompts := make([]string, 12)
	first := map[string]cluster.Result{}
	for i := range prompts {
		prompts[i] = longPrompt(i)
		first[prompts[i]] = generate(t, m.Client, request(prompts[i], 20, 0, disaggregated))
	}
	blocks := int(first[prompts[0]].Finished.GetUsage().GetPromptTokens()) / 32
	cluster.Await(t, 20*time.Second, func() string {
		list, err := store.ListBlocks(t.Context(), &workerv1.ListBlocksRequest{})
		if err != nil || len(list.GetBlockHashes()) < 6*blocks {
			return fmt.Sprintf("the store has %d blocks (%v)", len(list.GetBlockHashes()), err)
		}
		return ""
	})

	// The worker that had the oldest prompt leaves.
	gone := first[prompts[0]].Finished.GetRoute().GetPrefill()
	drained, err := m.Control.Drain(t.Context(), &controlv1.DrainRequest{WorkerId: gone})
	for err == nil {
		_, err = drained.Recv()
	}
	m.AwaitPool(t, controlv1.Role_ROLE_PREFILL, 1, 10*time.Second)

	fetched := 0
	for _, prompt := range prompts {
		before := first[prompt].Finished
		if before.GetRoute().GetPrefill() != gone {
			continue
		}
		r := generate(t, m.Client, request(prompt, 20, 0, disaggregated))
		if !slices.Equal(r.Tokens, first[prompt].Tokens) {
			t.Errorf("%q: %v, want %v", prompt, r.Tokens, first[prompt].Tokens)
		}
		usage, timings := r.Finished.GetUsage(), r.Finished.GetTimings()
		if timings.GetFetchNs() == 0 || int(usage.GetCachedTokens()) < (blocks-1)*32 {
			continue
		}
		fetched++
		checkFetch(t, before, r.Finished)
	}
	if fetched == 0 {
		t.Errorf("nothing of %s was fetched", gone)
	}
	m.AwaitIdle(t, 10*time.Second)
}

// checkFetch compares a request whose prefix was fetched with the same one when it
// was computed.
func checkFetch(t *testing.T, computed, fetched *inferencev1.Finished) {
	t.Helper()
	was, is := computed.GetTimings(), fetched.GetTimings()
	if is.GetPrefillComputeNs() >= was.GetPrefillComputeNs() {
		t.Errorf("computing took %v, before %v", time.Duration(is.GetPrefillComputeNs()), time.Duration(was.GetPrefillComputeNs()))
	}
	if is.GetFetchNs() > is.GetPrefillNs() {
		t.Errorf("fetched for %v of a prefill of %v", time.Duration(is.GetFetchNs()), time.Duration(is.GetPrefillNs()))
	}
	t.Logf("TTFT %v with %d tokens cached, of them fetched in %v; computed it was %v", time.Duration(is.GetTtftNs()),
		fetched.GetUsage().GetCachedTokens(), time.Duration(is.GetFetchNs()), time.Duration(was.GetTtftNs()))
}
