package mesh_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
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
	handler, service := mesh.NewReadiness(func(string) { close(said) })
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

// lacks is what a router says that has no decode worker.
const lacks = "no worker decodes"

// unserved is what a router says of workers.
func unserved(view []*controlv1.WorkerView) string {
	if slices.ContainsFunc(view, func(v *controlv1.WorkerView) bool {
		return v.GetConnected() && v.GetExcluded() == "" && v.GetRecord().GetRole() == controlv1.Role_ROLE_DECODE
	}) {
		return ""
	}
	return lacks
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
		handler, service := mesh.NewRouterReadiness(router.watch, func(serves bool) { serving = serves }, []string{"p1"}, func(unserved string) { said, waited = true, waited || unserved != "" })
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

// TestLateWorkers: who waited for a router that can serve nobody is told why.
func TestLateWorkers(t *testing.T) {
	prefill, decode := worker("p1", controlv1.Role_ROLE_PREFILL, true), worker("d1", controlv1.Role_ROLE_DECODE, true)
	for want, view := range map[string][]*controlv1.WorkerView{
		"the router is not connected to d1": {prefill},
		"no prefill worker":                 {prefill, decode},
	} {
		synctest.Test(t, func(t *testing.T) {
			watch := func(ctx context.Context, notify func([]*controlv1.WorkerView, string) error) error {
				if err := notify(view, "no prefill worker"); err != nil {
					return err
				}
				<-ctx.Done()
				return ctx.Err()
			}
			_, service := mesh.NewRouterReadiness(watch, nil, []string{"p1", "d1"}, func(string) { t.Error("it is said to be ready") })
			if err := service.Run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "not ready after 30s: "+want+": ") {
				t.Errorf("%v, want %q", err, want)
			}
		})
	}
}

// A router that was started by hand says what it lacks, and once it lacks nothing that it is
// ready; both once.
func TestRouterSaysWhatItLacks(t *testing.T) {
	decode, excluded := worker("d1", controlv1.Role_ROLE_DECODE, true), worker("d1", controlv1.Role_ROLE_DECODE, true)
	excluded.Excluded = "it has other weights"
	for _, c := range []struct {
		name  string
		views [][]*controlv1.WorkerView
		want  []string // what it lacks, each time that it is said
	}{
		{"nobody", [][]*controlv1.WorkerView{{}, {}}, []string{lacks}},
		{"a prefill worker", [][]*controlv1.WorkerView{{}, {worker("p1", controlv1.Role_ROLE_PREFILL, true)}}, []string{lacks}},
		{"one that it cannot use", [][]*controlv1.WorkerView{{excluded}}, []string{lacks}},
		{"later one that decodes", [][]*controlv1.WorkerView{{}, {excluded}, {decode}, {}, {decode}}, []string{lacks, ""}},
		{"one that decodes at once", [][]*controlv1.WorkerView{{decode}, {}}, []string{""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				router := &watched{views: make(chan []*controlv1.WorkerView)}
				var said []string
				_, service := mesh.NewRouterReadiness(router.watch, nil, nil, func(unserved string) { said = append(said, unserved) })
				ctx, cancel := context.WithCancel(t.Context())
				ran := make(chan error, 1)
				go func() { ran <- service.Run(ctx) }()
				for _, view := range c.views {
					router.views <- view
				}
				time.Sleep(time.Hour) // of the bubble: it waits for as long as it takes
				cancel()
				if err := <-ran; err != nil || !slices.Equal(said, c.want) {
					t.Errorf("said %q, want %q; %v", said, c.want, err)
				}
			})
		})
	}
}
