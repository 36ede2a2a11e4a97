package mesh_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
)

func status(handler http.Handler, path string) int {
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
	return answer.Code
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

// watched is a router that says what it is told; nil: it ends.
type watched struct{ views chan []*controlv1.WorkerView }

func (w *watched) watch(ctx context.Context, _ controlv1.Role, notify func([]*controlv1.WorkerView) error) error {
	for {
		select {
		case view := <-w.views:
			if view == nil {
				return errors.New("it ends")
			}
			if err := notify(view); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
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
	synctest.Test(t, func(t *testing.T) {
		router := &watched{views: make(chan []*controlv1.WorkerView)}
		said := make(chan struct{})
		handler, service := mesh.NewRouterReadiness(router.watch, []string{"p1"}, func() { close(said) })
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		await := func(want int) {
			t.Helper()
			synctest.Wait()
			if got := status(handler, "/readyz"); got != want {
				t.Fatalf("/readyz answers %d, want %d", got, want)
			}
		}
		go func() { ran <- service.Run(ctx) }()

		prefill, decode := worker("p1", controlv1.Role_ROLE_PREFILL, true), worker("d1", controlv1.Role_ROLE_DECODE, true)
		away := worker("d1", controlv1.Role_ROLE_DECODE, false)
		router.views <- []*controlv1.WorkerView{decode}
		router.views <- []*controlv1.WorkerView{prefill, away}
		<-said // all that are expected are there, but nobody decodes
		await(http.StatusServiceUnavailable)
		router.views <- []*controlv1.WorkerView{prefill, decode}
		await(http.StatusOK)
		router.views <- []*controlv1.WorkerView{prefill, away}
		await(http.StatusServiceUnavailable)
		router.views <- []*controlv1.WorkerView{decode}
		await(http.StatusOK)
		router.views <- nil
		await(http.StatusServiceUnavailable)
		if got := status(handler, "/healthz"); got != http.StatusOK {
			t.Errorf("alive: %d", got)
		}
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
}
