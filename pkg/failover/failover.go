// Package failover asks one of several routers, and goes on at another when it loses that one:
// a request's seed gives the same tokens everywhere.
//
// Commands and tests import it. It starts no goroutines.
package failover

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

const (
	// rounds is how often each router is asked, and the pause between two rounds is the first
	// of these at least, then twice as long each time, and the second at most.
	rounds               = 5
	firstPause, maxPause = 100 * time.Millisecond, 2 * time.Second
)

// Client asks the routers of one mesh. It is safe for concurrent use.
type Client struct {
	conns   []*grpc.ClientConn
	routers []inferencev1.InferenceClient
	next    atomic.Uint32
}

// New returns a client of routers, with one connection to each, at least one. Close closes them.
func New(conns ...*grpc.ClientConn) *Client {
	c := &Client{conns: conns}
	for _, conn := range conns {
		c.routers = append(c.routers, inferencev1.NewInferenceClient(conn))
	}
	return c
}

// Close closes the connections.
func (c *Client) Close() error {
	var errs []error
	for _, conn := range c.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// ListModels asks one router after the other until one answers.
func (c *Client) ListModels(ctx context.Context) (r *inferencev1.ListModelsResponse, err error) {
	for _, router := range c.routers {
		if r, err = router.ListModels(ctx, &inferencev1.ListModelsRequest{}); status.Code(err) != codes.Unavailable {
			break
		}
	}
	return r, err
}

// Generate sends a request to the next router in turn, and calls receive with each event of the
// answer, from this goroutine. Its error is a status, or that of receive; nil after Finished.
//
// A request that a router refuses with UNAVAILABLE, unless its budget of retries is spent, goes to another one, and so does one whose
// router is lost: receive gets another Accepted then, and after it the tokens that it has not
// had, so that none is missing and none comes twice. With one router there is one try.
func (c *Client) Generate(ctx context.Context, q *inferencev1.GenerateRequest, receive func(*inferencev1.GenerateEvent) error) error {
	a := &answer{request: q, receive: receive}
	first := int(c.next.Add(1) - 1)
	pause := firstPause
	for try := 1; ; try++ {
		err := a.follow(ctx, c.routers[(first+try-1)%len(c.routers)])
		if status.Code(err) != codes.Unavailable || rpc.Reason(err) == api.ReasonRetryBudget || a.stopped || len(c.routers) == 1 || try == rounds*len(c.routers) {
			return err
		}
		if try%len(c.routers) != 0 {
			continue
		}
		wait, _ := rpc.RetryAfter(err)
		timer := time.NewTimer(min(max(wait, pause), maxPause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
		pause *= 2
	}
}

// answer is what came of a request, from all routers together.
type answer struct {
	request     *inferencev1.GenerateRequest
	receive     func(*inferencev1.GenerateEvent) error
	fingerprint string
	tokens      []uint32
	stopped     bool // by receive
}

// follow reads the answer of one router.
func (a *answer) follow(ctx context.Context, router inferencev1.InferenceClient) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := router.Generate(ctx, a.request)
	if err != nil {
		return err
	}
	for finished := false; ; {
		event, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && !finished:
			return rpc.Errorf(codes.Internal, "INCOMPLETE_STREAM", "the router ended the stream without a result: see its log")
		case err != nil && finished: // however the stream ends, the answer is whole
			return nil
		case err != nil:
			return err
		}
		finished = event.GetFinished() != nil
		had, err := a.take(event)
		if err != nil {
			return err
		}
		if had {
			continue
		}
		if err := a.receive(event); err != nil {
			a.stopped = true
			return err
		}
	}
}

// take takes in an event and says whether the caller has had it.
func (a *answer) take(event *inferencev1.GenerateEvent) (had bool, err error) {
	if accepted := event.GetAccepted(); accepted != nil {
		if a.fingerprint != "" && accepted.GetSystemFingerprint() != a.fingerprint {
			return false, rpc.Errorf(codes.DataLoss, "OTHER_VERSION", "the router was lost, and another one serves other weights: send the request again")
		}
		a.fingerprint = accepted.GetSystemFingerprint()
		a.pin(accepted.GetSeed())
		return false, nil
	}
	ids := event.GetTokens().GetTokenIds()
	if len(ids) == 0 {
		return false, nil
	}
	offset := event.GetOffset()
	for i, id := range ids {
		switch at := offset + uint64(i); {
		case at < uint64(len(a.tokens)) && a.tokens[at] == id:
			had = true
		case at == uint64(len(a.tokens)) && !had:
			a.tokens = append(a.tokens, id)
		default:
			return false, rpc.Errorf(codes.DataLoss, "OTHER_TOKENS", "token %d does not go on with what came before: send the request again", at)
		}
	}
	return had, nil
}

// pin has the request sent with the seed that it was given, wherever it goes.
func (a *answer) pin(seed uint64) {
	if s := a.request.GetSampling(); s != nil && s.Seed != nil {
		return
	}
	a.request = proto.CloneOf(a.request)
	if a.request.Sampling == nil {
		a.request.Sampling = new(inferencev1.Sampling)
	}
	a.request.Sampling.Seed = &seed
}
