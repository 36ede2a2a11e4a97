package integration_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tandem-serving/tandem/pkg/engine/engines"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/integration/clustertest"
)

// slowly is a mesh whose requests take long enough to be cancelled in every
// phase.
func slowly(o *mesh.UpOptions) {
	o.Engine.Name = engines.Simulated
	o.Engine.Simulated.StepTime.BaseMs, o.Engine.Simulated.StepTime.PerTokenMs = 4, 0.05
	o.PrefillWorkers, o.DecodeWorkers = 2, 2
	o.Prefill.ChunkTokens = 64
}

// Nothing stranded: clients that vanish at any time, and deadlines that pass at
// any time, leave no block, sequence, transfer or goroutine behind, and the next
// request has the right tokens.
func TestNothingIsStranded(t *testing.T) {
	m := clustertest.Start(t, slowly)
	var asks []clustertest.Ask
	for i := range 8 {
		ask := request(longPrompt(i), 12, 0.8, disaggregated)
		want := generate(t, m.Client, ask)
		asks = append(asks, clustertest.Ask{Request: ask, Tokens: want.Tokens, Text: want.Text})
	}
	connectPairs(t, m.Client)
	m.AwaitIdle(t)
	before := runtime.NumGoroutine()
	vanishingClients(t, m, asks)
	awaitGoroutines(t, before)
}

func vanishingClients(t *testing.T, c clustertest.Cluster, asks []clustertest.Ask) {
	m := c.Router()
	vanish(t, m, asks)
	m.AwaitIdle(t)
	if r := generate(t, m, asks[0].Request); !slices.Equal(r.Tokens, asks[0].Tokens) {
		t.Errorf("afterwards: tokens %v, want %v", r.Tokens, asks[0].Tokens)
	}
	m.AwaitIdle(t)
}

// vanish sends requests whose clients go away, or whose deadlines pass, at any
// time.
func vanish(t *testing.T, m *clustertest.Client, asks []clustertest.Ask) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	var clients sync.WaitGroup
	for i := range 120 {
		after := time.Duration(random.Int64N(int64(120 * time.Millisecond)))
		begin := time.Duration(random.Int64N(int64(600 * time.Millisecond)))
		clients.Go(func() {
			clustertest.Pass(begin)
			ctx, cancel := context.WithCancel(t.Context())
			expected := []codes.Code{codes.OK, codes.Canceled}
			if i%2 == 0 {
				ctx, cancel = context.WithTimeout(t.Context(), after)
				expected = []codes.Code{codes.OK, codes.DeadlineExceeded}
			} else {
				defer time.AfterFunc(after, cancel).Stop()
			}
			defer cancel()
			ask := asks[i%len(asks)]
			r, err := m.Generate(ctx, ask.Request)
			if !slices.Contains(expected, status.Code(err)) {
				t.Errorf("ended with %v", err)
			}
			if want := ask.Tokens; len(r.Tokens) > len(want) || !slices.Equal(r.Tokens, want[:len(r.Tokens)]) || (err == nil && len(r.Tokens) != len(want)) {
				t.Errorf("tokens %v, want %v", r.Tokens, want)
			}
		})
	}
	clients.Wait()
}

// connectPairs sends requests until every prefill worker has its stream to every
// decode worker: those stay.
func connectPairs(t *testing.T, m *clustertest.Client) {
	t.Helper()
	var mu sync.Mutex
	pairs := make(map[string]bool)
	for round := 0; len(pairs) < 4; round++ {
		if round == 50 {
			t.Fatalf("only the pairs %v were ever used", pairs)
		}
		var clients sync.WaitGroup
		for i := range 8 {
			clients.Go(func() {
				r, err := m.Generate(t.Context(), request(longPrompt(1000+8*round+i), 12, 0.8, disaggregated))
				if err != nil {
					t.Errorf("generate: %v", err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				pairs[r.Finished.GetRoute().GetPrefill()+" to "+r.Finished.GetRoute().GetDecode()] = true
			})
		}
		clients.Wait()
	}
}

// awaitGoroutines waits until there are about as many goroutines as before.
func awaitGoroutines(t *testing.T, before int) {
	t.Helper()
	// Timers and connections of libraries come and go; leaks of 120 requests are
	// far more than this.
	const slack = 15
	deadline := time.After(timeout)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for runtime.NumGoroutine() > before+slack {
		select {
		case <-tick.C:
		case <-deadline:
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

// A client that lost its stream joins the request again and has every token
// once.
func TestResume(t *testing.T) {
	m := clustertest.Start(t, slowly)
	ask := request(longPrompt(1), 40, 0.8, disaggregated)
	want := generate(t, m.Client, ask)
	ask.ResumableFor = durationpb.New(5 * time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := m.Inference.Generate(ctx, ask)
	if err != nil {
		t.Fatal(err)
	}
	var accepted *inferencev1.Accepted
	var tokens []uint32
	for len(tokens) < 5 {
		event, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if a := event.GetAccepted(); a != nil {
			accepted = a
		}
		tokens = append(tokens, event.GetTokens().GetTokenIds()...)
	}
	cancel()
	for range 2 { // while it runs, and again when it is finished
		resuming, stop := context.WithTimeout(t.Context(), timeout)
		rest, err := m.Resume(resuming, accepted.GetRequestId(), accepted.GetSecret(), uint64(len(tokens)))
		stop()
		if err != nil {
			t.Fatal(err)
		}
		if all := append(slices.Clone(tokens), rest.Tokens...); !slices.Equal(all, want.Tokens) {
			t.Errorf("with the rest: %v, want %v", all, want.Tokens)
		}
	}
	m.AwaitIdle(t)
}
