// Package workertest has workers that compute nothing: they answer as prefill
// and decode workers do, over real gRPC on connections in memory, and fail where
// they are told to. Tests of the router use it, under testing/synctest too.
// Its goroutines end with the test.
package workertest

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// Stage is a place where a worker can be told to fail.
type Stage string

// The stages. Hooks are called right before the message of that name goes out.
const (
	Reserve Stage = "reserve"
	Admit   Stage = "admit"
	Token   Stage = "token" // before each token of decode
	End     Stage = "end"
	Start   Stage = "start"
	First   Stage = "first"
	Sent    Stage = "sent"
)

// Hook may make a worker fail or wait: what it returns ends the stream. It is
// told how many tokens the request has generated.
type Hook func(ctx context.Context, w *Worker, task *workerv1.Task, stage Stage, generated int) error

// Next is the token that follows: a function of prompt, seed and offset, as the
// real ones are.
type Next func(prompt []uint32, seed uint64, offset int) uint32

// Net connects workers by address, in memory, and carries KV between them: that
// is, word that it came.
type Net struct {
	// Next draws tokens.
	Next Next
	// StepTime is how long one token takes.
	StepTime time.Duration

	mu        sync.Mutex
	listeners map[string]*pipes
	conns     map[string][]net.Conn // that were dialled, by address
	transfers map[uint64]chan committed
	last      uint64
}

// committed is the end of a transfer.
type committed struct {
	sampled  uint32
	finished bool
}

// NewNet returns a net without workers.
func NewNet(next Next) *Net {
	return &Net{Next: next, StepTime: time.Millisecond, listeners: make(map[string]*pipes), conns: make(map[string][]net.Conn), transfers: make(map[uint64]chan committed)}
}

// Listen makes an address that Dial reaches.
func (n *Net) Listen(address string) net.Listener {
	l := newPipes()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[address] = l
	return l
}

// Dial connects to an address of this net.
func (n *Net) Dial(address string) (*grpc.ClientConn, error) {
	return rpc.Dial(address, rpc.ClientConfig{Name: "test", Dialer: func(ctx context.Context, address string) (net.Conn, error) {
		n.mu.Lock()
		l := n.listeners[address]
		n.mu.Unlock()
		if l == nil {
			return nil, fmt.Errorf("nobody listens on %s", address)
		}
		conn, err := l.DialContext(ctx)
		if err == nil {
			n.mu.Lock()
			n.conns[address] = append(n.conns[address], conn)
			n.mu.Unlock()
		}
		return conn, err
	}})
}

// Cut breaks every connection to an address. Who listens there goes on.
func (n *Net) Cut(address string) {
	n.mu.Lock()
	conns := n.conns[address]
	delete(n.conns, address)
	n.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close() // it may be closed already
	}
}

// Worker is one worker.
type Worker struct {
	// Ignorant: it does not know Task.prompt_logprobs, as workers of earlier versions.
	Ignorant bool
	// Drains, if set, is called before Drain says that so many sequences are left, of 2. It is not
	// changed once the worker serves.
	Drains func(ctx context.Context, left uint32) error

	// Record is what it says of itself.
	Record *controlv1.WorkerRecord
	// Hook, if set, is asked at each stage. It is not changed once the worker
	// serves.
	Hook Hook
	// MeanState is what it says of any prompt whose hidden states are asked for. It is not changed once
	// requests come.
	MeanState []float32
	// Blocks is its answer to ListBlocks.
	Blocks *workerv1.ListBlocksResponse
	// Cached is how many tokens of any prompt a prefill worker has, and Fetch, if
	// set, how many more it gets from a store that it is told of, after how long.
	// They are not changed once requests come.
	Cached uint32
	Fetch  func(source *workerv1.BlockSource) (tokens uint32, took time.Duration)

	net    *Net
	server *rpc.Server
	done   chan struct{}

	mu      sync.Mutex
	tasks   []*workerv1.Task
	sources []*workerv1.BlockSource
	open    int
}

// Start makes a worker and serves it until Stop.
func (n *Net) Start(record *controlv1.WorkerRecord, hook Hook) *Worker {
	w := &Worker{Record: record, Hook: hook, net: n, done: make(chan struct{}),
		Blocks: &workerv1.ListBlocksResponse{Epoch: record.GetEpoch()},
		server: rpc.NewServer(rpc.ServerConfig{Name: record.GetId()})}
	workerv1.RegisterWorkerServer(w.server, &workerServer{w: w})
	workerv1.RegisterDecodeServer(w.server, &decodeServer{w: w})
	workerv1.RegisterPrefillServer(w.server, &prefillServer{w: w})
	listener := n.Listen(record.GetAddresses()[0])
	go func() {
		defer close(w.done)
		_ = w.server.Serve(listener) // ends with Kill
	}()
	w.server.SetServing(true)
	return w
}

// Kill breaks every connection, as the death of the process does, and waits
// until nothing of the worker runs.
func (w *Worker) Kill() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = w.server.Stop(ctx) // the error says that calls were cut
	<-w.done
}

// Tasks is what it was asked to do.
func (w *Worker) Tasks() []*workerv1.Task {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*workerv1.Task(nil), w.tasks...)
}

// Sources is the stores that it was told of, nil for each prefill without one.
func (w *Worker) Sources() []*workerv1.BlockSource {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*workerv1.BlockSource(nil), w.sources...)
}

// Open is how many streams it serves.
func (w *Worker) Open() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.open
}

func (w *Worker) begin(task *workerv1.Task) func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tasks = append(w.tasks, task)
	w.open++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.open--
	}
}

func (w *Worker) at(ctx context.Context, task *workerv1.Task, stage Stage, generated int) error {
	if w.Hook == nil {
		return nil
	}
	return w.Hook(ctx, w, task, stage, generated)
}

// step takes the time of one token.
func (w *Worker) step(ctx context.Context) error { return wait(ctx, w.net.StepTime) }

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// draw is the token at an offset and whether it ends the request, and why.
func (w *Worker) draw(task *workerv1.Task, offset int) (uint32, inferencev1.FinishReason) {
	ids := task.GetTokenIds()
	token := w.net.Next(ids[:len(ids)-int(task.GetGenerated())], task.GetSampling().GetSeed(), offset)
	if slices.Contains(task.GetStopTokenIds(), token) {
		return token, inferencev1.FinishReason_FINISH_REASON_STOP
	}
	if offset+1 >= int(task.GetMaxTokens()) {
		return token, inferencev1.FinishReason_FINISH_REASON_LENGTH
	}
	return token, 0
}

// Logprobs is what the workers say of the likelihood of a token, if they are
// asked: a function of token and offset. The bytes are for the router to put right.
func Logprobs(wanted *uint32, token uint32, offset int) *inferencev1.TokenLogprobs {
	if wanted == nil {
		return nil
	}
	l := &inferencev1.TokenLogprobs{Logprob: -float32(offset) / 8, Text: []byte("wrong")}
	for i := range *wanted {
		l.Top = append(l.Top, &inferencev1.TokenLogprob{TokenId: token + 100*i, Logprob: -float32(offset) - float32(i), Text: []byte("wrong")})
	}
	return l
}

type workerServer struct {
	workerv1.UnimplementedWorkerServer
	w *Worker
}

func (s *workerServer) Drain(_ *workerv1.DrainRequest, stream grpc.ServerStreamingServer[workerv1.DrainProgress]) error {
	for left := uint32(2); ; left-- {
		if s.w.Drains != nil {
			if err := s.w.Drains(stream.Context(), left); err != nil {
				return err
			}
		}
		if err := stream.Send(&workerv1.DrainProgress{Sequences: left}); err != nil || left == 0 {
			return err
		}
	}
}

func (s *workerServer) Undrain(context.Context, *workerv1.UndrainRequest) (*workerv1.UndrainResponse, error) {
	return &workerv1.UndrainResponse{}, nil
}

func (s *workerServer) Identify(context.Context, *workerv1.IdentifyRequest) (*workerv1.IdentifyResponse, error) {
	return &workerv1.IdentifyResponse{Record: s.w.Record}, nil
}

func (s *workerServer) ListBlocks(context.Context, *workerv1.ListBlocksRequest) (*workerv1.ListBlocksResponse, error) {
	return s.w.Blocks, nil
}

type decodeServer struct {
	workerv1.UnimplementedDecodeServer
	w *Worker
}

func (s *decodeServer) Run(q *workerv1.DecodeRequest, stream grpc.ServerStreamingServer[workerv1.DecodeEvent]) error {
	w, task, ctx := s.w, q.GetTask(), stream.Context()
	if err := membership.CheckEpoch(q.GetWorkerEpoch(), w.Record.GetEpoch()); err != nil {
		return err
	}
	defer w.begin(task)()
	offset := int(task.GetGenerated())
	if err := w.at(ctx, task, Reserve, offset); err != nil {
		return err
	}
	reserved := &workerv1.Reserved{}
	var transfer chan committed
	if !q.GetPrefillHere() {
		reserved.Ticket, transfer = w.net.reserve(w.Record)
	}
	if err := stream.Send(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Reserved{Reserved: reserved}}); err != nil {
		return err
	}
	if transfer != nil {
		select {
		case c := <-transfer:
			if c.finished {
				return rpc.Error(codes.Canceled, api.ReasonFinishedAtPrefill, "the first token was the last", 0)
			}
			offset++
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	if err := w.at(ctx, task, Admit, offset); err != nil {
		return err
	}
	admitted := &workerv1.Admitted{QueueNs: int64(time.Microsecond)}
	if err := stream.Send(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Admitted{Admitted: admitted}}); err != nil {
		return err
	}
	if task.PromptLogprobs != nil && !w.Ignorant {
		prompt := task.GetTokenIds()
		for at := 1; at < len(prompt); at += 64 {
			message := &workerv1.PromptLogprobs{Offset: uint32(at)}
			for i := at; i < min(at+64, len(prompt)); i++ {
				l := Logprobs(task.PromptLogprobs, prompt[i], i)
				l.Rank = uint32(i)
				message.Logprobs = append(message.Logprobs, l)
			}
			if err := stream.Send(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_PromptLogprobs{PromptLogprobs: message}}); err != nil {
				return err
			}
		}
	}
	for ; ; offset++ {
		if err := w.step(ctx); err != nil {
			return err
		}
		if err := w.at(ctx, task, Token, offset); err != nil {
			return err
		}
		token, reason := w.draw(task, offset)
		tokens := &workerv1.Tokens{Offset: uint32(offset), TokenIds: []uint32{token}}
		if l := Logprobs(task.Logprobs, token, offset); l != nil {
			tokens.Logprobs = append(tokens.Logprobs, l)
		}
		if err := stream.Send(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Tokens{Tokens: tokens}}); err != nil {
			return err
		}
		if reason == 0 {
			continue
		}
		if err := w.at(ctx, task, End, offset); err != nil {
			return err
		}
		ended := &workerv1.Ended{Reason: reason, DecodeComputeNs: int64(w.net.StepTime), PrefillComputeNs: int64(w.net.StepTime)}
		if task.GetPool() {
			ended.MeanState = w.MeanState
		}
		return stream.Send(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Ended{Ended: ended}})
	}
}

func (n *Net) reserve(record *controlv1.WorkerRecord) (*kvtransferv1.Ticket, chan committed) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	transfer := make(chan committed, 1)
	n.transfers[n.last] = transfer
	return &kvtransferv1.Ticket{TransferId: n.last, Epoch: record.GetEpoch(), Receiver: record.GetId()}, transfer
}

type prefillServer struct {
	workerv1.UnimplementedPrefillServer
	w *Worker
}

func (s *prefillServer) Run(q *workerv1.PrefillRequest, stream grpc.ServerStreamingServer[workerv1.PrefillEvent]) error {
	w, task, ctx := s.w, q.GetTask(), stream.Context()
	if err := membership.CheckEpoch(q.GetWorkerEpoch(), w.Record.GetEpoch()); err != nil {
		return err
	}
	defer w.begin(task)()
	w.mu.Lock()
	w.sources = append(w.sources, q.GetSource())
	w.mu.Unlock()
	offset := int(task.GetGenerated())
	w.net.mu.Lock()
	transfer := w.net.transfers[q.GetTicket().GetTransferId()]
	w.net.mu.Unlock()
	if err := w.at(ctx, task, Start, offset); err != nil {
		return err
	}
	started := &workerv1.PrefillStarted{QueueNs: int64(time.Microsecond), CachedTokens: w.Cached}
	if source := q.GetSource(); source != nil && w.Fetch != nil {
		tokens, took := w.Fetch(source)
		if err := wait(ctx, took); err != nil {
			return err
		}
		started.FetchedTokens, started.FetchNs = tokens, int64(took)
		started.CachedTokens += tokens
		if started.FetchVerdict = workerv1.FetchVerdict_FETCH_VERDICT_FAILED; tokens > 0 {
			started.FetchVerdict = workerv1.FetchVerdict_FETCH_VERDICT_GIVEN
		}
	}
	if err := stream.Send(&workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_Started{Started: started}}); err != nil {
		return err
	}
	if err := w.step(ctx); err != nil {
		return err
	}
	if err := w.at(ctx, task, First, offset); err != nil {
		return err
	}
	token, reason := w.draw(task, offset)
	first := &workerv1.FirstToken{TokenId: token, Last: reason != 0, Reason: reason, ComputeNs: int64(w.net.StepTime),
		Logprobs: Logprobs(task.Logprobs, token, offset)}
	if err := stream.Send(&workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_FirstToken{FirstToken: first}}); err != nil {
		return err
	}
	if err := w.at(ctx, task, Sent, offset+1); err != nil {
		return err
	}
	transfer <- committed{sampled: token, finished: reason != 0}
	return stream.Send(&workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_Sent{Sent: &workerv1.KvSent{Bytes: 4096, TransferNs: int64(time.Microsecond), Transport: "unix"}}})
}
