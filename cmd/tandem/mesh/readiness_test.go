package mesh_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

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
	handler, service := mesh.NewReadiness(func(bool) { close(said) })
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

func (w *watched) watch(ctx context.Context, notify func([]*controlv1.WorkerView, string) error) error {
	for {
		select {
		case view := <-w.views:
			if view == nil {
				return errors.New("it ends")
			}
			if err := notify(view, unserved(view)); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// unserved is what a router says of workers.
func unserved(view []*controlv1.WorkerView) string {
	if slices.ContainsFunc(view, func(v *controlv1.WorkerView) bool {
		return v.GetConnected() && v.GetExcluded() == "" && v.GetRecord().GetRole() == controlv1.Role_ROLE_DECODE
	}) {
		return ""
	}
	return "no worker decodes"
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
		said, waited, serving := false, false, false
		handler, service := mesh.NewRouterReadiness(router.watch, func(serves bool) { serving = serves }, []string{"p1"}, func(waiting bool) { said, waited = true, waited || waiting })
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		await := func(want int) {
			t.Helper()
			synctest.Wait()
			if got := status(handler, "/readyz"); got != want || serving != (want == http.StatusOK) {
				t.Fatalf("/readyz answers %d, want %d; its health says %v", got, want, serving)
			}
		}
		go func() { ran <- service.Run(ctx) }()

		prefill, decode := worker("p1", controlv1.Role_ROLE_PREFILL, true), worker("d1", controlv1.Role_ROLE_DECODE, true)
		away := worker("d1", controlv1.Role_ROLE_DECODE, false)
		router.views <- []*controlv1.WorkerView{decode}
		router.views <- []*controlv1.WorkerView{prefill, away} // all that are expected are there, but nobody decodes
		await(http.StatusServiceUnavailable)
		if said {
			t.Fatal("it is said to be ready, and could serve nobody")
		}
		router.views <- []*controlv1.WorkerView{prefill, decode}
		await(http.StatusOK)
		if !said || waited {
			t.Fatalf("said: %v, waiting: %v", said, waited)
		}
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

// A router that was started by hand says that it waits for a decode worker, and once there is
// one that it is ready; both once.
func TestRouterWaitsForADecodeWorker(t *testing.T) {
	decode, excluded := worker("d1", controlv1.Role_ROLE_DECODE, true), worker("d1", controlv1.Role_ROLE_DECODE, true)
	excluded.Excluded = "it has other weights"
	for _, c := range []struct {
		name  string
		views [][]*controlv1.WorkerView
		want  []bool // waiting, each time that it is said
	}{
		{"nobody", [][]*controlv1.WorkerView{{}, {}}, []bool{true}},
		{"a prefill worker", [][]*controlv1.WorkerView{{}, {worker("p1", controlv1.Role_ROLE_PREFILL, true)}}, []bool{true}},
		{"one that it cannot use", [][]*controlv1.WorkerView{{excluded}}, []bool{true}},
		{"later one that decodes", [][]*controlv1.WorkerView{{}, {excluded}, {decode}, {}, {decode}}, []bool{true, false}},
		{"one that decodes at once", [][]*controlv1.WorkerView{{decode}, {}}, []bool{false}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				router := &watched{views: make(chan []*controlv1.WorkerView)}
				var said []bool
				_, service := mesh.NewRouterReadiness(router.watch, nil, nil, func(waiting bool) { said = append(said, waiting) })
				ctx, cancel := context.WithCancel(t.Context())
				ran := make(chan error, 1)
				go func() { ran <- service.Run(ctx) }()
				for _, view := range c.views {
					router.views <- view
				}
				time.Sleep(time.Hour) // of the bubble: it waits for as long as it takes
				cancel()
				if err := <-ran; err != nil || !slices.Equal(said, c.want) {
					t.Errorf("said %v, want %v; %v", said, c.want, err)
				}
			})
		})
	}
}
