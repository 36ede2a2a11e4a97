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

// taskFor is what workers are told of the request after some tokens of it were
// generated.
func (r *request) taskFor(attempt int, generated []int32) *workerv1.Task {
	p := r.plan
	envelope := proto.CloneOf(p.Envelope)
	envelope.Attempt = uint32(attempt)
	score := p.PromptLogprobs
	if len(generated) > 0 { // all was said
		score = nil
	}
	return &workerv1.Task{
		PromptLogprobs:   score,
		Envelope:         envelope,
		Model:            p.Model.Spec.Name,
		ModelDigest:      r.version.Digest,
		TokenIds:         preprocess.IDs(p.Tokens, generated),
		Generated:        uint32(len(generated)),
		MaxTokens:        uint32(p.MaxTokens),
		MinTokens:        uint32(p.MinTokens),
		Sampling:         p.Sampling,
		Logprobs:         p.Logprobs,
		StructuredOutput: p.Structured,
		Pool:             p.Pool,
		StopTokenIds:     preprocess.IDs(p.StopTokens),
		FirstTokenNs:     int64(joining.FirstTokenIn(time.Now(), r.arrived, p.Envelope.GetSlo().GetTtft().AsDuration(), attempt, r.attempts[attempt].decided().GetHedge(), len(generated) > 0)),
	}
}

func (r *request) openDecode(a joining.OpenDecode) {
	request := &workerv1.DecodeRequest{Task: r.taskFor(a.Stream.Attempt, a.Generated), PrefillHere: a.PrefillHere, Sender: a.Sender, WorkerEpoch: a.Worker.Epoch, Pauses: true, Queued: true}
	read(r, a.Stream, a.Worker, workerv1.Decode_Run_FullMethodName, func(ctx context.Context, conn *grpc.ClientConn) (func() error, error) {
		stream, err := openDecodeStream(ctx, conn, request, r.requests.deps.Log != nil)
		if err != nil {
			return nil, err
		}
		return func() error {
			event, err := stream.receive()
			if err == nil {
				r.handleDecode(joining.DecodeMessage{Attempt: a.Stream.Attempt, Event: event})
			}
			return err
		}, nil
	})
}

func (r *request) openPrefill(a joining.OpenPrefill) {
	request := &workerv1.PrefillRequest{Task: r.taskFor(a.Stream.Attempt, a.Generated), Ticket: a.Ticket, WorkerEpoch: a.Worker.Epoch, Source: a.Source, Queued: true}
	read(r, a.Stream, a.Worker, workerv1.Prefill_Run_FullMethodName, func(ctx context.Context, conn *grpc.ClientConn) (func() error, error) {
		stream, err := workerv1.NewPrefillClient(conn).Run(ctx, request)
		if err != nil {
			return nil, err
		}
		return func() error {
			event, err := stream.Recv()
			if err == nil {
				r.handle(joining.PrefillMessage{Attempt: a.Stream.Attempt, Event: event})
			}
			return err
		}, nil
	})
}

// read opens a stream and hands its messages, then its one end, to the request. What open
// returns does so with one message. The request's lock is held.
func read(r *request, stream joining.Stream, worker routing.Ref, fullMethod string,
	open func(context.Context, *grpc.ClientConn) (next func() error, err error),
) {
	ctx, cancel := context.WithCancel(r.ctx)
	r.streams[stream] = cancel
	ctx, span := r.spans.call(ctx, fullMethod, stream.Attempt, worker)
	r.requests.wait.Go(func() {
		var connection uint64
		err := func() error {
			conn, number, release, err := r.requests.deps.Dispatcher.Acquire(worker)
			connection = number
			if err != nil {
				return err
			}
			defer release()
			next, err := open(ctx, conn)
			for err == nil {
				err = next()
			}
			return err
		}()
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if span != nil {
			rpc.EndSpan(span, err)
		}
		r.handle(joining.Closed{Stream: stream, Err: err, Connection: connection})
	})
}
