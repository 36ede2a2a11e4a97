package mesh_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
)

func status(handler http.Handler, path string) int {
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
	return answer.Code
}

// await waits until /readyz answers want.
func await(t *testing.T, handler http.Handler, want int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); status(handler, "/readyz") != want; {
		if time.Now().After(deadline) {
			t.Fatalf("/readyz never became %d", want)
		}
		<-time.After(time.Millisecond)
	}
}

func TestReadinessOfAWorker(t *testing.T) {
	said := make(chan struct{})
	handler, service := mesh.NewReadiness(func() { close(said) })
	if got := status(handler, "/readyz"); got != http.StatusServiceUnavailable {
		t.Errorf("before it is ready: %d", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- service.Run(ctx) }()
	<-said
	if got := status(handler, "/readyz"); got != http.StatusOK {
		t.Errorf("when it is ready: %d", got)
	}
	if err := service.Stop(ctx); err != nil {
		t.Error(err)
	}
	if got := status(handler, "/readyz"); got != http.StatusServiceUnavailable {
		t.Errorf("while it stops: %d", got)
	}
	if got := status(handler, "/healthz"); got != http.StatusOK {
		t.Errorf("alive while it stops: %d", got)
	}
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

// watched is a router that says what it is told.
type watched struct {
	controlv1.UnimplementedControlServer
	views chan []*controlv1.WorkerView
}

func (w *watched) WatchWorkers(_ *controlv1.ListWorkersRequest, stream grpc.ServerStreamingServer[controlv1.ListWorkersResponse]) error {
	for {
		select {
		case view := <-w.views:
			if view == nil {
				return context.Canceled
			}
			if err := stream.Send(&controlv1.ListWorkersResponse{Workers: view}); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

func worker(id string, role controlv1.Role, connected bool) *controlv1.WorkerView {
	return &controlv1.WorkerView{Connected: connected, Record: &controlv1.WorkerRecord{
		Id: id, Role: role, State: controlv1.WorkerState_WORKER_STATE_SERVING,
	}}
}

// A router is ready for requests as long as it has a decode worker.
func TestReadinessOfARouter(t *testing.T) {
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	router, server := &watched{views: make(chan []*controlv1.WorkerView)}, grpc.NewServer()
	controlv1.RegisterControlServer(server, router)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() { server.Stop(); <-served }()

	said := make(chan struct{})
	handler, service := mesh.NewRouterReadiness("unix://"+listener.Addr().String(), []string{"p1"}, func() { close(said) })
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- service.Run(ctx) }()

	prefill, decode := worker("p1", controlv1.Role_ROLE_PREFILL, true), worker("d1", controlv1.Role_ROLE_DECODE, true)
	away := worker("d1", controlv1.Role_ROLE_DECODE, false)
	router.views <- []*controlv1.WorkerView{decode}
	router.views <- []*controlv1.WorkerView{prefill, away}
	<-said // all that are expected are there, but nobody decodes
	await(t, handler, http.StatusServiceUnavailable)
	router.views <- []*controlv1.WorkerView{prefill, decode}
	await(t, handler, http.StatusOK)
	router.views <- []*controlv1.WorkerView{prefill, away}
	await(t, handler, http.StatusServiceUnavailable)
	router.views <- []*controlv1.WorkerView{decode}
	await(t, handler, http.StatusOK)
	router.views <- nil // the stream breaks and is begun again
	await(t, handler, http.StatusServiceUnavailable)
	router.views <- []*controlv1.WorkerView{decode}
	await(t, handler, http.StatusOK)
	if got := status(handler, "/healthz"); got != http.StatusOK {
		t.Errorf("alive: %d", got)
	}
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}
