package store

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/worker"
)

const (
	// reportEvery is how often a load report goes out when nothing changes.
	reportEvery = time.Second
	// reportSpacing is the least time between two reports.
	reportSpacing = 100 * time.Millisecond
)

// workerServer is the Worker gRPC service.
type workerServer struct {
	workerv1.UnimplementedWorkerServer
	service *Service
}

// Drain lets the store leave and reports what is left, on every change, until
// nothing is.
func (v *workerServer) Drain(request *workerv1.DrainRequest, stream grpc.ServerStreamingServer[workerv1.DrainProgress]) error {
	s := v.service
	if epoch := request.GetEpoch(); epoch != 0 {
		if err := worker.CheckEpoch(epoch, s.deps.Identity.Epoch); err != nil {
			return err
		}
	}
	s.leaving.leave(request.GetGrace().AsDuration())
	var last *workerv1.DrainProgress
	for {
		progress, changed := s.progress()
		if last == nil || !proto.Equal(progress, last) {
			if err := stream.Send(progress); err != nil {
				return err
			}
			last = progress
		}
		if progress.GetTransfers() == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

func (s *Service) progress() (*workerv1.DrainProgress, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	progress := &workerv1.DrainProgress{Transfers: uint32(len(s.puts) + len(s.fetches))}
	if s.shelf != nil {
		pool := s.shelf.stock.Stats().Pool
		progress.BlocksHeld = uint32(pool.Held + pool.Quarantined)
	}
	return progress, s.changed
}

// ListBlocks is what is held at one point of the sequence of KV events.
func (v *workerServer) ListBlocks(context.Context, *workerv1.ListBlocksRequest) (*workerv1.ListBlocksResponse, error) {
	s := v.service
	s.mu.Lock()
	defer s.mu.Unlock()
	response := &workerv1.ListBlocksResponse{Epoch: s.deps.Identity.Epoch, Sequence: s.lastEvent}
	if s.shelf != nil {
		response.BlockHashes = hashValues(s.shelf.stock.Hashes())
	}
	return response, nil
}

// report publishes the store's load, on change and at least each second, until ctx
// ends.
func (s *Service) report(ctx context.Context) {
	beat := time.NewTimer(0)
	defer beat.Stop()
	for {
		load, changed := s.load()
		s.deps.Signals.Load(load)
		spacing := time.NewTimer(reportSpacing)
		beat.Reset(reportEvery)
		select {
		case <-ctx.Done():
			spacing.Stop()
			return
		case <-spacing.C:
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-beat.C:
		}
	}
}

func (s *Service) load() (*controlv1.LoadReport, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	load := &controlv1.LoadReport{Role: s.deps.Identity.Role, StepTime: &controlv1.StepTimeModel{}}
	if s.shelf != nil {
		pool := s.shelf.stock.Stats().Pool
		load.BlocksFree = uint32(pool.Free + pool.Cached)
		load.BlocksReserved = uint32(pool.Reserved)
		load.BlocksQuarantined = uint32(pool.Quarantined)
		load.BlocksTotal = uint32(pool.Total)
	}
	return load, s.changed
}
