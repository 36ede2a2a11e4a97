package worker

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"
)

// ReasonWrongEpoch says that the message is for another incarnation of this worker.
const ReasonWrongEpoch = "WRONG_EPOCH"

// Server is the Worker gRPC service of a worker.
type Server struct {
	workerv1.UnimplementedWorkerServer
	driver    *Driver
	epoch     uint64
	leave     func(grace time.Duration)
	transfers func() int
}

// NewServer returns the service. leave starts the worker's leaving: it is called
// once for each Drain request, must not block, and ends what is left after grace
// (0: waits for ever). transfers counts KV transfers that have not ended.
func NewServer(driver *Driver, epoch uint64, leave func(grace time.Duration), transfers func() int) *Server {
	return &Server{driver: driver, epoch: epoch, leave: leave, transfers: transfers}
}

// Register adds the service to a gRPC server.
func (s *Server) Register(registrar grpc.ServiceRegistrar) {
	workerv1.RegisterWorkerServer(registrar, s)
}

// Drain lets the worker leave and reports what is left, on every change and each
// second, until nothing is.
func (s *Server) Drain(request *workerv1.DrainRequest, stream grpc.ServerStreamingServer[workerv1.DrainProgress]) error {
	if epoch := request.GetEpoch(); epoch != 0 {
		if err := CheckEpoch(epoch, s.epoch); err != nil {
			return err
		}
	}
	s.leave(request.GetGrace().AsDuration())
	beat := time.NewTicker(time.Second)
	defer beat.Stop()
	var last *workerv1.DrainProgress
	for {
		changed := s.driver.Changed()
		progress := s.progress()
		if last == nil || progress.GetSequences() != last.GetSequences() || progress.GetTransfers() != last.GetTransfers() || progress.GetBlocksHeld() != last.GetBlocksHeld() {
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
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

func (s *Server) progress() *workerv1.DrainProgress {
	load, _ := s.driver.Load()
	return &workerv1.DrainProgress{
		Sequences:  uint32(s.driver.Remaining()),
		Transfers:  uint32(s.transfers()),
		BlocksHeld: uint32(load.BlocksTotal - load.BlocksFree),
	}
}

// ListBlocks is the prefix cache at one point of the sequence of KV events.
func (s *Server) ListBlocks(context.Context, *workerv1.ListBlocksRequest) (*workerv1.ListBlocksResponse, error) {
	hashes, lastEvent := s.driver.Snapshot()
	response := &workerv1.ListBlocksResponse{Epoch: s.epoch, Sequence: lastEvent, BlockHashes: make([]uint64, len(hashes))}
	for i, h := range hashes {
		response.BlockHashes[i] = uint64(h)
	}
	return response, nil
}
