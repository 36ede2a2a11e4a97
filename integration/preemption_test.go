package integration_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine/engines"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

const (
	// crowdedContext is the capacity of a worker of crowded, tokens.
	crowdedContext = 256
	// crowdedMemory is its KV memory: 8 blocks of 32 tokens of 4 layers of the bundled
	// model.
	crowdedMemory = 8 * 64 << 10
)

// crowded is a decode worker that expects hardly anything to be generated, and so
// lets two answers begin that do not both fit. The second has to wait for some hundred
// steps, about twice as long as a worker may be silent between tokens.
func crowded(o *mesh.UpOptions) {
	o.PrefillWorkers, o.DecodeWorkers = 1, 1
	o.Engine.Name, o.Engine.Simulated.StepTime.BaseMs = engines.Simulated, 80
	o.ContextTokens, o.Engine.KVMemory = crowdedContext, crowdedMemory
	o.Decode.OutputShare = 0.001
	o.Router.Routing.WorkerSilence = 4 * time.Second // long enough for a busy machine
}

// A request that gives its blocks away on a worker that works stays there until it
// has them again, and gives the tokens that it gives alone.
func TestPreemptedRequestStaysOnItsWorker(t *testing.T) {
	longtest.Only(t)
	t.Parallel() // much of it is waiting
	// Of 8 blocks 8 and 5. A router sends the second if all of it fits beside what the
	// first has taken so far.
	lengths := [2]uint32{220, 140}
	ask := func(number int, mode inferencev1.Mode) *inferencev1.GenerateRequest {
		q := request(fmt.Sprintf("Tale %d. Once upon a time", number), lengths[number], 0, mode)
		q.IgnoreEos = true
		return q
	}
	alone := clustertest.Start(t, func(o *mesh.UpOptions) {
		o.Engine.Name, o.Engine.Simulated.StepTime.BaseMs = engines.Simulated, 0
	})
	for _, mode := range []inferencev1.Mode{aggregated, disaggregated} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			m := clustertest.Start(t, func(o *mesh.UpOptions) {
				if crowded(o); mode == aggregated { // the prefill worker would do all of the second one
					o.PrefillWorkers = 0
				}
			})
			var results [2]clustertest.Result
			var errs [2]error
			var all sync.WaitGroup
			runs, once := make(chan struct{}), new(sync.Once)
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			all.Go(func() {
				results[0], errs[0] = m.GenerateWith(ctx, ask(0, mode), func(int) { once.Do(func() { close(runs) }) })
			})
			select {
			case <-runs:
			case <-ctx.Done():
				t.Error("the first one did not begin")
			}
			results[1], errs[1] = m.Generate(ctx, ask(1, mode))
			all.Wait()
			if counted(t, m, "tandem_worker_preemptions_total", "") == 0 {
				t.Error("nobody was preempted")
			}
			for i, r := range results {
				want := generate(t, alone.Client, ask(i, mode)).Tokens
				if errs[i] != nil || !slices.Equal(r.Tokens, want) || len(want) != int(lengths[i]) {
					t.Errorf("request %d gives %v, error %v; alone %v", i, r.Tokens, errs[i], want)
				}
				if n := r.Finished.GetRoute().GetRetries(); n != 0 {
					t.Errorf("request %d was taken from its worker %d times", i, n)
				}
			}
		})
	}
}
