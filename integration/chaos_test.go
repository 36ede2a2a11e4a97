package integration_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/longtest"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

var (
	chaosFor  = flag.Duration("chaos", 0, "how long TestChaos breaks things; 0: each fault once")
	chaosSeed = flag.Uint64("chaos-seed", 1, "seed of TestChaos")
	chaosOnly = flag.String("chaos-only", "", "only faults of TestChaos whose name has this in it")
	chaosLogs = flag.String("chaos-record", "", "folder for the event logs of TestChaos; empty: a temporary one")
)

// Whatever breaks, no client gets a wrong token, none waits for ever, and nothing is
// left behind. Fixed requests go through both routers meanwhile, and every token of
// every answer, those of requests that failed too, is held against what one worker that
// works alone says. All processes record what they take in, and every log gives the same actions
// when it is replayed.
func TestChaos(t *testing.T) {
	if *chaosFor == 0 {
		longtest.Only(t)
	}
	asks := chaosAsks(t)
	m := startChaosMesh(t)
	load := startChaosLoad(m, asks)
	random := rand.New(rand.NewPCG(*chaosSeed, 0))
	var faults []chaosFault
	for _, f := range chaosFaults() {
		if strings.Contains(f.name, *chaosOnly) {
			faults = append(faults, f)
		}
	}
	began, done := time.Now(), 0
	report := &chaosReport{mesh: m, load: load, began: began, faults: make(map[string]map[string]int)}
	defer func() { t.Log(report) }()
	for time.Since(began) < *chaosFor || *chaosFor == 0 && done == 0 {
		random.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		for _, f := range faults {
			if *chaosFor > 0 && time.Since(began) >= *chaosFor {
				break
			}
			t.Logf("%6.1f s: %s; %s", time.Since(began).Seconds(), f.name, load)
			f.run(m, random)
			report.did(f)
			done++
		}
	}
	for _, router := range m.routers {
		m.awaitPools(router)
	}
	load.stop()
	t.Logf("%6.1f s: %d faults; %s", time.Since(began).Seconds(), done, load)
	// All is well again: everything is served, by both.
	for i, ask := range asks {
		r := generate(t, m.routers[i%len(m.routers)].client, ask.Request)
		if !slices.Equal(r.Tokens, ask.Tokens) || r.Text != ask.Text {
			t.Errorf("after it all, tokens %v, want %v; route %v", r.Tokens, ask.Tokens, r.Finished.GetRoute())
		}
	}
	for _, router := range m.routers {
		router.client.AwaitIdle(t)
	}
	m.replay()
}

// chaosAsks are 63 requests with the answers that they have to get.
func chaosAsks(t *testing.T) []clustertest.Ask {
	t.Helper()
	reference := clustertest.Start(t, nil)
	var asks []clustertest.Ask
	for i := range 21 {
		prompt := fmt.Sprintf("Once upon a time there were %d dogs.", i)
		if i%3 > 0 {
			prompt = longPrompt(i)
		}
		temperature := float32(i%2) * 0.9
		want := generate(t, reference.Client, request(prompt, uint32(20+i), temperature, aggregated))
		for _, mode := range []inferencev1.Mode{disaggregated, inferencev1.Mode_MODE_AUTO, aggregated} {
			asks = append(asks, clustertest.Ask{Request: request(prompt, uint32(20+i), temperature, mode), Tokens: want.Tokens, Text: want.Text})
		}
	}
	if err := reference.Stop(); err != nil {
		t.Fatal(err)
	}
	return asks
}

// chaosLoad is streams of requests, some of which their clients give up.
type chaosLoad struct {
	mesh   *chaosMesh
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu       sync.Mutex
	served   int
	left     int            // given up by their clients
	failures map[string]int // by code and reason
	endless  int            // ended by this test, since nothing else did
	wrong    int            // with a token that is not the reference's
	tokens   int            // compared
}

func startChaosLoad(m *chaosMesh, asks []clustertest.Ask) *chaosLoad {
	ctx, cancel := context.WithCancel(context.Background())
	l := &chaosLoad{mesh: m, cancel: cancel, failures: make(map[string]int)}
	for stream := range streams {
		random := rand.New(rand.NewPCG(*chaosSeed, uint64(stream)+1))
		l.wait.Go(func() {
			for ctx.Err() == nil {
				l.request(m.routers[stream%len(m.routers)], pick(random, asks), random.IntN(20) == 0)
				clustertest.Pass(loadPauseChaos)
			}
		})
	}
	m.t.Cleanup(l.stop)
	return l
}

// loadPauseChaos bounds the rate of one stream, also when requests fail at once.
const loadPauseChaos = 30 * time.Millisecond

func (l *chaosLoad) stop() {
	l.cancel()
	l.wait.Wait()
}

// request sends one request and checks what comes. A request ends within its deadline,
// with an answer or a status that says when to come again.
func (l *chaosLoad) request(router *chaosPart, ask clustertest.Ask, leaves bool) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	gone, leave := context.WithCancel(ctx)
	defer leave()
	q := proto.CloneOf(ask.Request)
	began := time.Now()
	r, err := router.client.GenerateWith(gone, q, func(tokens int) {
		if leaves && tokens >= len(ask.Tokens)/2 {
			leave()
		}
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.mesh.t
	l.tokens += len(r.Tokens)
	switch {
	case err == nil && (!slices.Equal(r.Tokens, ask.Tokens) || r.Text != ask.Text):
		l.wrong++
		t.Errorf("WRONG TOKENS from %s: %v, want %v; route %v", router.id, r.Tokens, ask.Tokens, r.Finished.GetRoute())
	case err == nil:
		l.served++
	case len(r.Tokens) > len(ask.Tokens) || !slices.Equal(r.Tokens, ask.Tokens[:len(r.Tokens)]):
		l.wrong++
		t.Errorf("WRONG TOKENS from %s before it failed with %v: %v, want the first of %v", router.id, err, r.Tokens, ask.Tokens)
	case leaves && status.Code(err) == codes.Canceled:
		l.left++
	case ctx.Err() != nil:
		l.endless++
		t.Errorf("a request had no end after %v and %d tokens: %v", timeout, len(r.Tokens), err)
	default:
		l.failures[status.Code(err).String()+" "+rpc.Reason(err)]++
		if code := status.Code(err); code != codes.Unavailable && code != codes.ResourceExhausted {
			t.Errorf("a request failed after %v and %d tokens: %v", time.Since(began).Round(time.Millisecond), len(r.Tokens), err)
		}
	}
}

// String is what became of the requests so far.
func (l *chaosLoad) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%d served, %d left, failed: %v", l.served, l.left, l.failuresText())
}

// failuresText is how many failed with what. mu is held.
func (l *chaosLoad) failuresText() (all []string) {
	for what, n := range l.failures {
		all = append(all, fmt.Sprintf("%d %s", n, what))
	}
	sort.Strings(all)
	return all
}

// requests are all that have ended. mu is held.
func (l *chaosLoad) requests() int {
	return l.served + l.left + total(l.failures) + l.endless + l.wrong
}
