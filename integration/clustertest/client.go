package clustertest

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
	Conn      *grpc.ClientConn // where Inference goes
}

// Dial connects to a router for the rest of the test: where it serves clients, and
// where operators.
func Dial(t testing.TB, address, control string) *Client {
	t.Helper()
	conn := connect(t, address)
	operators := conn
	if control != address {
		operators = connect(t, control)
	}
	return &Client{Inference: inferencev1.NewInferenceClient(conn), Control: controlv1.NewControlClient(operators), Conn: conn}
}

func connect(t testing.TB, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.Dial(address, rpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Result is what a request gave.
type Result struct {
	Accepted *inferencev1.Accepted
	Moves    int // to other routers, after one had begun
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

// Resume joins a request from an offset, with the secret of its first event.
func (c *Client) Resume(ctx context.Context, requestID, secret string, offset uint64) (Result, error) {
	var r Result
	stream, err := c.Inference.Resume(ctx, &inferencev1.ResumeRequest{RequestId: requestID, Secret: secret, Offset: offset})
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
		if event.GetAccepted() != nil && (r.Accepted != nil || len(r.Tokens) > 0) {
			return errors.New("not first: Accepted")
		}
		if err := r.take(event, offset); err != nil {
			return err
		}
	}
}

// take takes in an event of an answer that begins at an offset.
func (r *Result) take(event *inferencev1.GenerateEvent, offset uint64) error {
	if r.Finished != nil {
		return fmt.Errorf("event after Finished: %v", event)
	}
	switch e := event.GetEvent().(type) {
	case *inferencev1.GenerateEvent_Accepted:
		if r.Accepted != nil {
			r.Moves++
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
	return nil
}

// Timeout ends what the suite waits for. It is far more than a busy machine takes: a wait
// that ends by it found something that hangs, not something that is slow.
const Timeout = 2 * time.Minute

// Pass lets time pass for processes, etcd and NATS, whose clocks are the machine's.
func Pass(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
}

// Await waits until missing says nothing. At the timeout it fails the test, with what is
// missing.
func Await(t testing.TB, missing func() string) {
	t.Helper()
	timeout := time.NewTimer(Timeout)
	defer timeout.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		what := missing()
		if what == "" {
			return
		}
		select {
		case <-tick.C:
		case <-timeout.C:
			t.Fatalf("after %v: %s", Timeout, what)
		}
	}
}

// AwaitIdle waits until the router has nothing in flight and every worker says
// that all its blocks are free.
func (c *Client) AwaitIdle(t testing.TB) {
	t.Helper()
	Await(t, func() string {
		workers, err := c.Workers(controlv1.Role_ROLE_UNSPECIFIED)
		if err != nil {
			return err.Error()
		}
		for _, w := range workers {
			load := w.GetLoad()
			if w.GetRecord().GetRole() == controlv1.Role_ROLE_ROUTER || !w.GetConnected() && w.GetInFlight() == 0 {
				continue
			}
			if load == nil || w.GetInFlight() > 0 || load.GetBlocksFree() != load.GetBlocksTotal() || load.GetRunningSequences()+load.GetWaitingSequences() > 0 {
				return fmt.Sprintf("%s is not idle: %d in flight, load %v", w.GetRecord().GetId(), w.GetInFlight(), load)
			}
		}
		return ""
	})
}

// Workers are the workers of a role as the router sees them.
func (c *Client) Workers(role controlv1.Role) ([]*controlv1.WorkerView, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	view, err := c.Control.ListWorkers(ctx, &controlv1.ListWorkersRequest{Role: role})
	return view.GetWorkers(), err
}

// Usable are the ids of the workers of a role that are registered, serve, are
// connected and report their load.
func (c *Client) Usable(role controlv1.Role) ([]string, error) {
	workers, err := c.Workers(role)
	var ids []string
	for _, w := range workers {
		record := w.GetRecord()
		if w.GetRegistered() && w.GetConnected() && record.GetState() == controlv1.WorkerState_WORKER_STATE_SERVING &&
			w.GetLoad() != nil && w.GetLoadAge().AsDuration() < 3*time.Second {
			ids = append(ids, record.GetId())
		}
	}
	return ids, err
}

// AwaitPool waits until a pool has exactly n usable workers, and returns their
// ids.
func (c *Client) AwaitPool(t testing.TB, role controlv1.Role, n int) (ids []string) {
	t.Helper()
	Await(t, func() string {
		var err error
		if ids, err = c.Usable(role); err != nil || len(ids) != n {
			all, _ := c.Workers(role)
			return fmt.Sprintf("%d usable workers of %v, want %d: %v of %v (%v)", len(ids), role, n, ids, all, err)
		}
		return ""
	})
	return ids
}

// Busiest is the worker of a role that the router has the most requests on, as
// soon as there is one.
func (c *Client) Busiest(t testing.TB, role controlv1.Role) (id string) {
	t.Helper()
	Await(t, func() string {
		workers, err := c.Workers(role)
		if err != nil {
			return err.Error()
		}
		most := uint32(0)
		for _, w := range workers {
			if w.GetConnected() && w.GetInFlight() > most {
				id, most = w.GetRecord().GetId(), w.GetInFlight()
			}
		}
		if most == 0 {
			return fmt.Sprintf("no worker of %v is busy", role)
		}
		return ""
	})
	return id
}
