package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

// Client talks to a mesh's router.
type Client struct {
	Inference inferencev1.InferenceClient
	Control   controlv1.ControlClient
	Conn      *grpc.ClientConn
}

// Dial connects to a router for the rest of the test.
func Dial(t testing.TB, address string) *Client {
	t.Helper()
	conn, err := rpc.Dial(address, rpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &Client{Inference: inferencev1.NewInferenceClient(conn), Control: controlv1.NewControlClient(conn), Conn: conn}
}

// Result is what a request gave.
type Result struct {
	Accepted *inferencev1.Accepted
	Tokens   []uint32
	Text     string
	Finished *inferencev1.Finished

	progress func(tokens int)
}

// Generate runs a request to its end and checks the form of the answer: Accepted
// first, offsets without gap or repetition, Finished last.
func (c *Client) Generate(ctx context.Context, request *inferencev1.GenerateRequest) (Result, error) {
	return c.GenerateWith(ctx, request, nil)
}

// GenerateWith is Generate that says after each event how many tokens came so
// far.
func (c *Client) GenerateWith(ctx context.Context, request *inferencev1.GenerateRequest, progress func(tokens int)) (Result, error) {
	r := Result{progress: progress}
	stream, err := c.Inference.Generate(ctx, request)
	if err != nil {
		return r, err
	}
	err = r.read(stream, 0)
	return r, err
}

// Resume joins a request from an offset.
func (c *Client) Resume(ctx context.Context, requestID string, offset uint64) (Result, error) {
	var r Result
	stream, err := c.Inference.Resume(ctx, &inferencev1.ResumeRequest{RequestId: requestID, Offset: offset})
	if err != nil {
		return r, err
	}
	err = r.read(stream, offset)
	return r, err
}

func (r *Result) read(stream grpc.ServerStreamingClient[inferencev1.GenerateEvent], offset uint64) error {
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if r.Finished == nil {
				return errors.New("the stream ended without Finished")
			}
			return nil
		}
		if err != nil {
			return err
		}
		if r.Finished != nil {
			return fmt.Errorf("event after Finished: %v", event)
		}
		switch e := event.GetEvent().(type) {
		case *inferencev1.GenerateEvent_Accepted:
			if r.Accepted != nil || len(r.Tokens) > 0 {
				return errors.New("not first: Accepted")
			}
			r.Accepted = e.Accepted
		case *inferencev1.GenerateEvent_Tokens:
			if event.GetOffset() != offset+uint64(len(r.Tokens)) {
				return fmt.Errorf("offset %d after %d tokens from offset %d", event.GetOffset(), len(r.Tokens), offset)
			}
			r.Tokens = append(r.Tokens, e.Tokens.GetTokenIds()...)
			r.Text += e.Tokens.GetText()
		case *inferencev1.GenerateEvent_Finished:
			r.Finished = e.Finished
			r.Text += e.Finished.GetText()
		}
		if r.progress != nil {
			r.progress(len(r.Tokens))
		}
	}
}

// AwaitIdle waits until the router has nothing in flight and every worker says
// that all its blocks are free. It fails the test if that takes longer than
// within.
func (c *Client) AwaitIdle(t testing.TB, within time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		busy, err := c.busy(ctx)
		if err == nil && busy == "" {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not idle after %v: %s (%v)", within, busy, err)
		}
	}
}

// busy names a worker that is not idle, empty if all are.
func (c *Client) busy(ctx context.Context) (string, error) {
	view, err := c.Control.ListWorkers(ctx, &controlv1.ListWorkersRequest{})
	if err != nil {
		return "", err
	}
	for _, w := range view.GetWorkers() {
		load := w.GetLoad()
		if w.GetRecord().GetRole() == controlv1.Role_ROLE_ROUTER || !w.GetConnected() {
			continue
		}
		if load == nil || w.GetInFlight() > 0 || load.GetBlocksFree() != load.GetBlocksTotal() || load.GetRunningSequences()+load.GetWaitingSequences() > 0 {
			return fmt.Sprintf("%s: %d in flight, load %v", w.GetRecord().GetId(), w.GetInFlight(), load), nil
		}
	}
	return "", nil
}
