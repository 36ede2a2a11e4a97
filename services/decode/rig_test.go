package decode_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
	"github.com/tandem-serving/tandem/pkg/workerdriver/drivertest"
	"github.com/tandem-serving/tandem/services/decode"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	layers      = 3
	blockTokens = 4
	poolBlocks  = 40
	maxWaiting  = 4
	workerEpoch = 7
	lease       = 5 * time.Second
	stepTime    = 12 * time.Millisecond
	address     = "decode-1:1"
)

var prompt, task, wantError = drivertest.Prompt, drivertest.Task, drivertest.WantError

func newEngine(t *testing.T, blocks int, cfg simulated.Config) *simulated.Engine {
	t.Helper()
	cfg.Spec, cfg.Blocks, cfg.BlockTokens, cfg.MaxBatchTokens, cfg.MaxSequences = drivertest.Spec(), blocks, blockTokens, 256, 8
	e, err := simulated.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// compute puts a prompt's KV into blocks from first on and draws the next token.
func compute(t *testing.T, e *simulated.Engine, tokens []uint32, first int) int32 {
	t.Helper()
	s := engine.Sequence{Sample: &engine.Sample{}, Blocks: kvcache.BlockRange(first, blocksOf(len(tokens)))}
	for _, token := range tokens {
		s.Tokens = append(s.Tokens, int32(token))
	}
	out, err := e.Step(t.Context(), engine.Batch{Sequences: []engine.Sequence{s}})
	if err != nil {
		t.Fatal(err)
	}
	return out.Tokens[0]
}

// reference is the first n tokens after a prompt, each computed from scratch.
func reference(t *testing.T, prompt []uint32, n int) []uint32 {
	t.Helper()
	e := newEngine(t, 100, simulated.Config{})
	context := slices.Clone(prompt)
	for range n {
		context = append(context, uint32(compute(t, e, context, 0)))
	}
	return context[len(prompt):]
}

func blocksOf(tokens int) int { return kvcache.BlocksFor(tokens, blockTokens) }

// rig is a decode worker behind its gRPC server, in memory.
type rig struct {
	t        *testing.T
	listener *bufconn.Listener
	engine   *simulated.Engine
	service  *decode.Service
	signals  *drivertest.Signals
	decode   workerv1.DecodeClient
	worker   workerv1.WorkerClient
	sender   *sender

	// late holds calls back until their clients have gone away.
	late atomic.Bool

	layers drivertest.Layers
}

// newRig starts a worker, and somebody to send it KV, for the rest of the test,
// which must be a bubble.
func newRig(t *testing.T, change ...func(*decode.Config)) *rig {
	t.Helper()
	g := &rig{t: t, listener: bufconn.Listen(1 << 20), signals: drivertest.NewSignals()}
	g.engine = newEngine(t, poolBlocks, simulated.Config{StepTime: latency.Model{BaseMs: float64(stepTime / time.Millisecond)}, Wait: g.layers.Wait})
	var err error
	cfg := decode.Config{
		Limits:        worker.Limits{ChunkTokens: 16, MaxWaiting: maxWaiting, OutputShare: 1},
		TransferLease: lease, TransferIdle: 12 * lease, ReserveShare: 1, TransferCreditBytes: 4 << 20, KVEncoding: "native",
	}
	for _, c := range change {
		c(&cfg)
	}
	g.service, err = decode.New(cfg, decode.Deps{
		Deps: workerdriver.Deps{
			Identity: membership.Identity{ID: "decode-1", Epoch: workerEpoch, Role: controlv1.Role_ROLE_DECODE, Addresses: []string{address}},
			Engine:   g.engine, Signals: g.signals, Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	server := rpc.NewServer(kvtransfer.Serving(rpc.ServerConfig{MaxReceiveBytes: 64 << 20, Authenticate: func(ctx context.Context, _ string) (context.Context, error) {
		if g.late.Load() {
			<-ctx.Done()
		}
		return ctx, nil
	}}))
	g.service.Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(g.listener) }()
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- g.service.Run(ctx) }()
	conn, err := g.dial(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("worker: %v", err)
		}
		_ = server.Stop(ctx) // it says that calls were cut off
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	g.decode, g.worker = workerv1.NewDecodeClient(conn), workerv1.NewWorkerClient(conn)
	g.sender = g.newSender("prefill-1")
	return g
}

func (g *rig) dial(address string) (*grpc.ClientConn, error) {
	return rpc.Dial(address, rpc.ClientConfig{Dialer: func(ctx context.Context, _ string) (net.Conn, error) {
		return g.listener.DialContext(ctx)
	}})
}

// answer is a stream and what it said so far.
type answer struct {
	t        *testing.T
	stream   grpc.ServerStreamingClient[workerv1.DecodeEvent]
	reserved *workerv1.Reserved
	admitted *workerv1.Admitted
	tokens   []uint32
	logprobs []*inferencev1.TokenLogprobs
	offset   uint32 // of the first token
	ended    *workerv1.Ended
	err      error // nil at the end of a whole answer
	over     bool
}

func (g *rig) call(ctx context.Context, request *workerv1.DecodeRequest) *answer {
	g.t.Helper()
	if request.GetWorkerEpoch() == 0 {
		request.WorkerEpoch = workerEpoch
	}
	stream, err := g.decode.Run(ctx, request)
	// An error here is that ctx has ended already.
	return &answer{t: g.t, stream: stream, err: err, over: err != nil}
}

// next reads one event and checks that it may stand where it stands.
func (a *answer) next() {
	a.t.Helper()
	if a.over {
		return
	}
	event, err := a.stream.Recv()
	if err != nil {
		if a.over = true; !errors.Is(err, io.EOF) {
			a.err = err
		} else if a.ended == nil {
			a.t.Error("the answer ended without Ended")
		}
		return
	}
	if a.ended != nil {
		a.t.Errorf("%v follows Ended", event)
	}
	switch e := event.GetEvent().(type) {
	case *workerv1.DecodeEvent_Reserved:
		if a.reserved != nil || a.admitted != nil {
			a.t.Error("Reserved is not the first event")
		}
		a.reserved = e.Reserved
	case *workerv1.DecodeEvent_Admitted:
		if a.admitted != nil || len(a.tokens) > 0 {
			a.t.Error("Admitted comes twice or after tokens")
		}
		a.admitted = e.Admitted
	case *workerv1.DecodeEvent_Tokens:
		if a.admitted == nil {
			a.t.Error("tokens come before Admitted")
		}
		if len(a.tokens) == 0 {
			a.offset = e.Tokens.GetOffset()
		}
		if e.Tokens.GetOffset() != a.offset+uint32(len(a.tokens)) || len(e.Tokens.GetTokenIds()) == 0 {
			a.t.Errorf("%v after %d tokens from %d on", e.Tokens, len(a.tokens), a.offset)
		}
		a.tokens = append(a.tokens, e.Tokens.GetTokenIds()...)
		a.logprobs = append(a.logprobs, e.Tokens.GetLogprobs()...)
	case *workerv1.DecodeEvent_Ended:
		a.ended = e.Ended
	}
}

// ticket waits for Reserved.
func (a *answer) ticket() *kvtransferv1.Ticket {
	a.t.Helper()
	if a.next(); a.reserved.GetTicket() == nil {
		a.t.Fatalf("no ticket came: %v", a.err)
	}
	return a.reserved.GetTicket()
}

// rest reads to the end.
func (a *answer) rest() *answer {
	a.t.Helper()
	for !a.over {
		a.next()
	}
	return a
}

// generate is a whole disaggregated request.
func (g *rig) generate(request *workerv1.DecodeRequest) *answer {
	g.t.Helper()
	a := g.call(context.Background(), request)
	g.sender.ship(a.ticket(), request.GetTask().GetTokenIds())
	return a.rest()
}

// checkTokens checks that an answer is whole and right: tokens of the prompt from
// offset on, as one engine alone draws them.
func (a *answer) checkTokens(what string, tokens []uint32, offset, end int, reason inferencev1.FinishReason) {
	a.t.Helper()
	want := reference(a.t, tokens, end)[offset:]
	if a.err != nil || !slices.Equal(a.tokens, want) || int(a.offset) != offset && len(want) > 0 || a.ended.GetReason() != reason {
		a.t.Errorf("%s: tokens %v from %d, %v, error %v; want %v from %d, %v", what, a.tokens, a.offset, a.ended, a.err, want, offset, reason)
	}
}

const (
	length = inferencev1.FinishReason_FINISH_REASON_LENGTH
	stop   = inferencev1.FinishReason_FINISH_REASON_STOP
)

// works checks that the next request is served rightly.
func (g *rig) works(seed int) {
	g.t.Helper()
	tokens := prompt(37, seed)
	g.generate(&workerv1.DecodeRequest{Task: task(tokens, 6)}).checkTokens("the next request", tokens, 1, 6, length)
	g.idle()
}

// idle checks that nothing is left of any request.
func (g *rig) idle() {
	g.t.Helper()
	drivertest.WantIdle(g.t, g.service.Driver())
}

func checkBlocks(t *testing.T, list *workerv1.ListBlocksResponse, signals *drivertest.Signals) {
	t.Helper()
	got := slices.Sorted(slices.Values(list.GetBlockHashes()))
	want, events := signals.Blocks()
	if !slices.Equal(got, want) || list.GetSequence() != events || list.GetEpoch() != workerEpoch || len(want) == 0 {
		t.Error(fmt.Sprintf("%d blocks at event %d of epoch %d;", len(got), list.GetSequence(), list.GetEpoch()),
			fmt.Sprintf("published were %d at %d", len(want), events))
	}
}
