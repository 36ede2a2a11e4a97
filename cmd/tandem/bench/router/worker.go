package router

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/signals"
)

// worker is one simulated worker: it speaks as real ones do and computes nothing. A decode
// worker sends one token of each of its sequences, a message each, once every Plan.Gap.
type worker struct {
	workerv1.UnimplementedWorkerServer
	fleet     *fleet
	record    *controlv1.WorkerRecord
	blocks    []uint64
	phase     time.Duration // of its steps
	server    *rpc.Server
	publisher *signals.Publisher
	tasks     atomic.Uint64
	running   atomic.Int64

	mu    sync.Mutex
	ended bool
	new   []*sequence // since the last step
}

// sequence is one that a decode worker generates.
type sequence struct {
	stream       grpc.ServerStreamingServer[workerv1.DecodeEvent]
	times        *requestTimes
	offset, most int
	came         int64      // when a request came that this worker computes alone; 0: its first token is out
	done         chan error // gets one
}

func (f *fleet) start(record *controlv1.WorkerRecord, blocks []uint64, phase time.Duration, listener net.Listener) *worker {
	w := &worker{fleet: f, record: record, blocks: blocks, phase: phase, server: rpc.NewServer(rpc.ServerConfig{
		Name: record.GetId(), Credentials: f.secure.worker(record.GetRole()),
	})}
	w.publisher = f.signals.NewPublisher(record.GetId(), record.GetEpoch())
	workerv1.RegisterWorkerServer(w.server, w)
	if record.GetRole() == controlv1.Role_ROLE_DECODE {
		workerv1.RegisterDecodeServer(w.server, decoder{worker: w})
		f.wait.Go(w.decode)
	} else {
		workerv1.RegisterPrefillServer(w.server, prefiller{worker: w})
	}
	f.wait.Go(func() { _ = w.server.Serve(listener) }) // the router says if it cannot be reached
	w.server.SetServing(true)
	return w
}

// Identify answers with the record.
func (w *worker) Identify(context.Context, *workerv1.IdentifyRequest) (*workerv1.IdentifyResponse, error) {
	return &workerv1.IdentifyResponse{Record: w.record}, nil
}

// ListBlocks answers with the blocks that the plan gives it.
func (w *worker) ListBlocks(context.Context, *workerv1.ListBlocksRequest) (*workerv1.ListBlocksResponse, error) {
	return &workerv1.ListBlocksResponse{Epoch: w.record.GetEpoch(), BlockHashes: w.blocks}, nil
}

// load is a report of it.
func (w *worker) load() *controlv1.LoadReport {
	gap := float64(w.fleet.plan.Gap) / float64(time.Millisecond)
	running := uint64(max(0, w.running.Load()))
	return &controlv1.LoadReport{
		Role: w.record.GetRole(), RunningSequences: uint32(running), RunningContextTokens: running * uint64(w.fleet.plan.PromptTokens+w.fleet.plan.Tokens/2),
		BlocksFree: freeSpace, BlocksTotal: freeSpace, Tasks: w.tasks.Load(),
		StepTime: &controlv1.StepTimeModel{BaseMs: gap / 2, PerTokenMs: 1e-4, Samples: 1000, MostTokens: maxStepBatch},
	}
}

// decoder serves Decode.
type decoder struct {
	workerv1.UnimplementedDecodeServer
	*worker
}

// Run answers as a decode worker does.
func (d decoder) Run(q *workerv1.DecodeRequest, stream grpc.ServerStreamingServer[workerv1.DecodeEvent]) error {
	f, task := d.fleet, q.GetTask()
	times := f.times.of(task.GetEnvelope().GetRequestId())
	came := f.times.now()
	if err := membership.CheckEpoch(q.GetWorkerEpoch(), d.record.GetEpoch()); err != nil {
		return err
	}
	d.running.Add(1)
	defer d.running.Add(-1)
	if number := d.tasks.Add(1); q.GetQueued() {
		if err := stream.Send(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Queued{Queued: &workerv1.Queued{Task: number}}}); err != nil {
			return err
		}
	}
	reserved, arrived, offset := &workerv1.Reserved{}, make(chan struct{}), int(task.GetGenerated())
	if !q.GetPrefillHere() {
		id := f.transfer.Add(1)
		f.transfers.Store(id, arrived)
		defer f.transfers.Delete(id)
		reserved.Ticket = &kvtransferv1.Ticket{TransferId: id, Epoch: d.record.GetEpoch(), Receiver: d.record.GetId(), LayoutDigest: d.record.GetLayoutDigest()}
		times.addHeld(f.times.now() - came)
	}
	if err := stream.Send(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Reserved{Reserved: reserved}}); err != nil {
		return err
	}
	if !q.GetPrefillHere() {
		select {
		case <-arrived:
			offset++
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
	if err := stream.Send(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Admitted{Admitted: &workerv1.Admitted{}}}); err != nil {
		return err
	}
	s := &sequence{stream: stream, times: times, offset: offset, most: int(task.GetMaxTokens()), done: make(chan error, 1)}
	if q.GetPrefillHere() {
		s.came = came
	}
	d.mu.Lock()
	if d.ended {
		d.mu.Unlock()
		return errStopped
	}
	d.new = append(d.new, s)
	d.mu.Unlock()
	return <-s.done
}

var errStopped = status.FromContextError(context.Canceled).Err()

// decode is a decode worker's loop of steps.
func (w *worker) decode() {
	event := &workerv1.Tokens{TokenIds: make([]uint32, 1)}
	message := &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Tokens{Tokens: event}}
	// Workers do not step together: what is sent at once is one's batch.
	ticker := time.NewTicker(w.phase + 1)
	defer ticker.Stop()
	var running []*sequence
	for first := true; ; first = false {
		select {
		case <-ticker.C:
			if first {
				ticker.Reset(w.fleet.plan.Gap)
			}
		case <-w.fleet.stopping.Done():
			w.mu.Lock()
			w.ended = true
			running = append(running, w.new...)
			w.new = nil
			w.mu.Unlock()
			for _, s := range running {
				s.done <- errStopped
			}
			return
		}
		w.mu.Lock()
		running = append(running, w.new...)
		clear(w.new)
		w.new = w.new[:0]
		w.mu.Unlock()
		left := running[:0]
		for _, s := range running {
			over, err := w.step(s, event, message)
			if over || err != nil {
				s.done <- err
				continue
			}
			left = append(left, s)
		}
		clear(running[len(left):])
		running = left
	}
}

// step sends the next token of a sequence, in message, which holds event.
func (w *worker) step(s *sequence, event *workerv1.Tokens, message *workerv1.DecodeEvent) (over bool, err error) {
	event.Offset, event.TokenIds[0] = uint32(s.offset), w.fleet.token(s.offset)
	now := w.fleet.times.now()
	if s.came != 0 {
		s.times.addHeld(now - s.came)
		s.came = 0
	}
	s.times.sent(s.offset, now)
	s.offset++
	if err := s.stream.Send(message); err != nil || s.offset < s.most {
		return false, err
	}
	return true, s.stream.Send(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Ended{Ended: &workerv1.Ended{Reason: inferencev1.FinishReason_FINISH_REASON_LENGTH}}})
}

// token is the one at an offset.
func (f *fleet) token(offset int) uint32 { return f.script[offset%len(f.script)] }

// prefiller serves Prefill.
type prefiller struct {
	workerv1.UnimplementedPrefillServer
	*worker
}

// Run answers as a prefill worker does whose prompts take no time.
func (p prefiller) Run(q *workerv1.PrefillRequest, stream grpc.ServerStreamingServer[workerv1.PrefillEvent]) error {
	f, task := p.fleet, q.GetTask()
	times := f.times.of(task.GetEnvelope().GetRequestId())
	came := f.times.now()
	if err := membership.CheckEpoch(q.GetWorkerEpoch(), p.record.GetEpoch()); err != nil {
		return err
	}
	p.running.Add(1)
	defer p.running.Add(-1)
	if number := p.tasks.Add(1); q.GetQueued() {
		if err := stream.Send(&workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_Queued{Queued: &workerv1.Queued{Task: number}}}); err != nil {
			return err
		}
	}
	if err := stream.Send(&workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_Started{Started: &workerv1.PrefillStarted{}}}); err != nil {
		return err
	}
	offset := int(task.GetGenerated())
	now := f.times.now()
	times.addHeld(now - came)
	times.sent(offset, now)
	if err := stream.Send(&workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_FirstToken{FirstToken: &workerv1.FirstToken{TokenId: f.token(offset)}}}); err != nil {
		return err
	}
	if arrived, ok := f.transfers.LoadAndDelete(q.GetTicket().GetTransferId()); ok {
		if arrived, is := arrived.(chan struct{}); is {
			close(arrived)
		}
	}
	return stream.Send(&workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_Sent{Sent: &workerv1.KvSent{Transport: "tcp"}}})
}
