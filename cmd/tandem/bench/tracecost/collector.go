package tracecost

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// collector takes spans and counts them, as a collector would that keeps none.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer
	address string
	server  *grpc.Server
	serving sync.WaitGroup
	spans   atomic.Int64
}

// startCollector serves on a free port until stop.
func startCollector() (*collector, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &collector{address: listener.Addr().String(), server: grpc.NewServer()}
	collectorv1.RegisterTraceServiceServer(c.server, c)
	c.serving.Go(func() { _ = c.server.Serve(listener) }) // ends with stop
	return c, nil
}

// Export counts.
func (c *collector) Export(_ context.Context, q *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	for _, resource := range q.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			c.spans.Add(int64(len(scope.GetSpans())))
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func (c *collector) stop() {
	c.server.Stop()
	c.serving.Wait()
}
