package control_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/control"
)

// stream is a call of Drain.
type stream struct {
	grpc.ServerStreamingServer[controlv1.DrainProgress]
	ctx context.Context
}

func (s stream) Context() context.Context { return s.ctx }

// A Drain that ends before its turn is no fault of the router.
func TestDrainThatEndsBeforeItsTurn(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	for _, test := range []struct {
		ctx    context.Context
		code   codes.Code
		reason string
	}{{gone, codes.Canceled, api.ReasonClientGone}, {late, codes.DeadlineExceeded, api.ReasonDeadline}} {
		server := control.New(control.Deps{Leaving: t.Context()})
		server.TakeTurn()
		err := server.Drain(&controlv1.DrainRequest{WorkerId: "d1"}, stream{ctx: test.ctx})
		if status.Code(err) != test.code || rpc.Reason(err) != test.reason {
			t.Errorf("%v: %v", test.ctx.Err(), err)
		}
	}
}
