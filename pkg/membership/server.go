package membership

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// Register adds the Worker service to a gRPC server.
func (m *Member) Register(registrar grpc.ServiceRegistrar) {
	workerv1.RegisterWorkerServer(registrar, &server{member: m})
}

// server is the Worker service of a member.
type server struct {
	workerv1.UnimplementedWorkerServer
	member *Member
}

// Identify says who answers.
func (s *server) Identify(context.Context, *workerv1.IdentifyRequest) (*workerv1.IdentifyResponse, error) {
	s.member.mu.Lock()
	defer s.member.mu.Unlock()
	return &workerv1.IdentifyResponse{Record: s.member.record()}, nil
}

// Drain lets the worker leave and reports what is left, whenever that differs from the last report,
// until nothing is. It fails if the drain is taken back.
func (s *server) Drain(request *workerv1.DrainRequest, stream grpc.ServerStreamingServer[workerv1.DrainProgress]) error {
	if err := s.checkEpoch(request); err != nil {
		return err
	}
	undone := s.member.Leave(request.GetGrace().AsDuration())
	beat := time.NewTicker(time.Second)
	defer beat.Stop()
	var last *workerv1.DrainProgress
	for {
		progress, changed := s.member.cfg.Progress()
		if undone.Err() != nil {
			return rpc.Error(codes.Aborted, api.ReasonDrainUndone, "the drain was taken back: this worker takes requests again", 0)
		}
		if last == nil || !proto.Equal(progress, last) {
			if err := stream.Send(progress); err != nil {
				return err
			}
			last = progress
		}
		if progress.GetSequences() == 0 && progress.GetTransfers() == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-beat.C:
		case <-undone.Done():
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

// Undrain takes requests again.
func (s *server) Undrain(ctx context.Context, request *workerv1.UndrainRequest) (*workerv1.UndrainResponse, error) {
	if err := s.checkEpoch(request); err != nil {
		return nil, err
	}
	err := s.member.Undrain(ctx)
	switch {
	case ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	case err != nil:
		return nil, rpc.Error(codes.FailedPrecondition, api.ReasonWorkerEnds, err.Error(), 0)
	}
	return &workerv1.UndrainResponse{}, nil
}

// ListBlocks is the prefix cache at one point of the sequence of KV events.
func (s *server) ListBlocks(context.Context, *workerv1.ListBlocksRequest) (*workerv1.ListBlocksResponse, error) {
	hashes, lastEvent := s.member.cfg.Blocks()
	return &workerv1.ListBlocksResponse{Epoch: s.member.cfg.Identity.Epoch, Sequence: lastEvent, BlockHashes: hashes}, nil
}

// checkEpoch is CheckEpoch of a call that may name none, for whichever worker runs.
func (s *server) checkEpoch(request interface{ GetEpoch() uint64 }) error {
	if request.GetEpoch() == 0 {
		return nil
	}
	return CheckEpoch(request.GetEpoch(), s.member.cfg.Identity.Epoch)
}
