package kvtransfer

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// transferServer is the KVTransfer service, each stream of which goes to the receiver
// that is there when it begins.
type transferServer struct {
	kvtransferv1.UnimplementedKVTransferServer
	service *Service
}

// Stream implements the KVTransfer service.
func (v transferServer) Stream(stream grpc.BidiStreamingServer[kvtransferv1.SenderMessage, kvtransferv1.ReceiverMessage]) error {
	v.service.mu.Lock()
	c := v.service.cache
	v.service.mu.Unlock()
	if c == nil {
		return rpc.Error(codes.Unavailable, api.ReasonLayoutMismatch, "this store holds no blocks yet: offer some first", 0)
	}
	return c.receiver.Serve(stream)
}
