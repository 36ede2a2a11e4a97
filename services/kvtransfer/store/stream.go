package store

import (
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

// transferServer stands for the receiver of whichever shelf there is.
type transferServer struct {
	kvtransferv1.UnimplementedKVTransferServer
}

// transferDesc is the KVTransfer service, each stream of which goes to the receiver
// that is there when it begins.
func (s *Service) transferDesc() *grpc.ServiceDesc {
	desc := kvtransferv1.KVTransfer_ServiceDesc
	desc.Streams = slices.Clone(desc.Streams)
	for i := range desc.Streams {
		name := desc.Streams[i].StreamName
		desc.Streams[i].Handler = func(_ any, stream grpc.ServerStream) error { return s.serveStream(name, stream) }
	}
	return &desc
}

func (s *Service) serveStream(name string, stream grpc.ServerStream) error {
	s.mu.Lock()
	h := s.shelf
	s.mu.Unlock()
	if h != nil {
		if is, err := h.served.stream(name, stream); is {
			return err
		}
	}
	return rpc.Error(codes.Unavailable, ReasonLayout, "this store holds no blocks yet: offer some first", 0)
}
