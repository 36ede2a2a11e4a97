package serving

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/preprocess"
)

// task is what workers are told of the request after some tokens of it were
// generated.
func (r *request) task(attempt int, generated []int32) *workerv1.Task {
	p := r.plan
	envelope := proto.CloneOf(p.Envelope)
	envelope.Attempt = uint32(attempt)
	return &workerv1.Task{
		Envelope:     envelope,
		Model:        p.Model.Spec.Name,
		ModelDigest:  r.version.Digest,
		TokenIds:     preprocess.IDs(p.Tokens, generated),
		Generated:    uint32(len(generated)),
		MaxTokens:    uint32(p.MaxTokens),
		Sampling:     p.Sampling,
		Logprobs:     p.Logprobs,
		StopTokenIds: preprocess.IDs(p.StopTokens),
		FirstTokenNs: int64(joining.FirstTokenIn(time.Now(), p.Arrived, p.Envelope.GetSlo().GetTtft().AsDuration(), attempt)),
	}
}

func (r *request) openDecode(a joining.OpenDecode) {
	request := &workerv1.DecodeRequest{Task: r.task(a.Stream.Attempt, a.Generated), PrefillHere: a.PrefillHere, WorkerEpoch: a.Worker.Epoch, Pauses: true, Queued: true}
	read(r, a.Stream, a.Worker, workerv1.Decode_Run_FullMethodName,
		func(ctx context.Context, conn *grpc.ClientConn) (receiver[workerv1.DecodeEvent], error) {
			return workerv1.NewDecodeClient(conn).Run(ctx, request)
		},
		func(event *workerv1.DecodeEvent) joining.Event {
			return joining.DecodeMessage{Attempt: a.Stream.Attempt, Event: event}
		})
}

func (r *request) openPrefill(a joining.OpenPrefill) {
	request := &workerv1.PrefillRequest{Task: r.task(a.Stream.Attempt, a.Generated), Ticket: a.Ticket, WorkerEpoch: a.Worker.Epoch, Source: a.Source, Queued: true}
	read(r, a.Stream, a.Worker, workerv1.Prefill_Run_FullMethodName,
		func(ctx context.Context, conn *grpc.ClientConn) (receiver[workerv1.PrefillEvent], error) {
			return workerv1.NewPrefillClient(conn).Run(ctx, request)
		},
		func(event *workerv1.PrefillEvent) joining.Event {
			return joining.PrefillMessage{Attempt: a.Stream.Attempt, Event: event}
		})
}

// receiver is the client's end of a worker stream.
type receiver[E any] interface{ Recv() (*E, error) }

// read opens a stream and hands its messages, then its one end, to the request,
// whose goroutine takes them until every stream has ended.
func read[E any](r *request, stream joining.Stream, worker routing.Ref, fullMethod string,
	open func(context.Context, *grpc.ClientConn) (receiver[E], error), wrap func(*E) joining.Event,
) {
	ctx, cancel := context.WithCancel(r.ctx)
	r.streams[stream] = cancel
	ctx, span := r.spans.call(ctx, fullMethod, worker)
	r.requests.wait.Go(func() {
		var connection uint64
		err := func() error {
			conn, number, release, err := r.requests.deps.Dispatcher.Acquire(worker)
			connection = number
			if err != nil {
				return err
			}
			defer release()
			messages, err := open(ctx, conn)
			if err != nil {
				return err
			}
			for {
				message, err := messages.Recv()
				if err != nil {
					return err
				}
				r.inbox <- wrap(message)
			}
		}()
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if span != nil {
			rpc.EndSpan(span, err)
		}
		r.inbox <- joining.Closed{Stream: stream, Err: err, Connection: connection}
	})
}
