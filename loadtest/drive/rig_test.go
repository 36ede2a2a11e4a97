package drive_test

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/loadtest/fakeserver"
	"github.com/tandem-serving/tandem/loadtest/finetimer"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ms = time.Millisecond

// source generates periodic requests, unlimited unless count is set.
type source struct {
	every  time.Duration
	count  int
	tokens int
	given  int
	// err comes after count.
	err error
	// then is every request's.
	then func(answer workload.Answer) (*workload.Request, time.Duration)
}

func (s *source) Next() (*workload.Request, error) {
	if s.count > 0 && s.given == s.count {
		if s.err != nil {
			return nil, s.err
		}
		return nil, io.EOF
	}
	q := &workload.Request{
		Due: time.Duration(s.given) * s.every, Session: s.given, MaxTokens: s.tokens, Exact: true,
		Prompt: workload.Prompt{TokenIDs: []uint32{1, 2, 3}}, Then: s.then,
	}
	s.given++
	return q, nil
}

// rig is an in-memory fake server with a client on virtual time. It ends with the test's
// bubble.
func rig(t *testing.T, shape fakeserver.Shape) client.Client {
	t.Helper()
	engine, err := fakeserver.NewEngine(shape, false, finetimer.Portable())
	if err != nil {
		t.Fatal(err)
	}
	server := fakeserver.NewServer(engine)
	listener := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	tandem, err := client.NewTandem(client.TandemConfig{
		Address: "fake:1", Connections: 2,
		Dialer: func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tandem.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := tandem.Describe(t.Context()); err != nil {
		t.Fatal(err)
	}
	return tandem
}

// onVirtualTime runs a load against a fake server of that shape and passes the run on.
func onVirtualTime(t *testing.T, shape fakeserver.Shape, o drive.Options, check func(*testing.T, *record.Run)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o.Client, o.Timer = rig(t, shape), finetimer.Portable()
		run, err := drive.Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		check(t, run)
	})
}
