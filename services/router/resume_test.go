package router_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker/workertest"
	"github.com/tandem-serving/tandem/services/router"
)

// routerRecord is a router's record in the membership.
func routerRecord(id, address string) *controlv1.WorkerRecord {
	return &controlv1.WorkerRecord{Id: id, Role: controlv1.Role_ROLE_ROUTER, Epoch: 1, Addresses: []string{address}, Model: "fable", ModelDigest: digest}
}

// another starts router-2 of the mesh at router:3, which asks callers who they are unless asks is
// nil. It ends with the function returned.
func (m *mesh) another(t *testing.T, asks *auth.Authenticator) (service *router.Service, inference inferencev1.InferenceClient, end func()) {
	t.Helper()
	tok, err := fable()
	if err != nil {
		t.Fatal(err)
	}
	service, err = router.New(router.DefaultConfig(), router.Deps{
		ID: "router-2", Models: []router.Model{{Spec: spec(), Tokenizer: tok}}, Members: m.members, Signals: m.others, Dial: m.net.Dial, Rand: onlyZero{}, Auth: asks,
	})
	if err != nil {
		t.Fatal(err)
	}
	config := rpc.ServerConfig{Name: "router"}
	if asks != nil {
		config.Authenticate = asks.Call
	}
	server, listener := rpc.NewServer(config), m.net.Listen("router:3")
	service.Register(server)
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	wait.Go(func() { _ = server.Serve(listener) })
	wait.Go(func() {
		if err := service.Run(ctx); err != nil {
			t.Error("run:", err)
		}
	})
	conn, err := m.net.Dial("router:3")
	if err != nil {
		t.Fatal(err)
	}
	return service, inferencev1.NewInferenceClient(conn), func() {
		cancel()
		stopCtx, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		_ = errors.Join(conn.Close(), server.Stop(stopCtx))
		wait.Wait()
	}
}

// saysNothing accepts connections, and says nothing.
func saysNothing(listener net.Listener) (end func()) {
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			wait.Go(func() {
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			})
		}
	})
	return func() {
		_ = listener.Close()
		wait.Wait()
	}
}

// A request is resumed at a router that has never heard of it, beside others that are gone
// or hang.
func TestResumeAtAnotherRouter(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.net.StepTime = 50 * time.Millisecond
		d := m.start(nil, decodeRecord("d1"))[0]
		_, elsewhere, end := m.another(t, nil)
		defer end()
		defer saysNothing(m.net.Listen("router:5"))()
		m.members.set(true, d.Record, routerRecord("router-1", "router:1"), routerRecord("router-2", "router:3"), routerRecord("router-gone", "router:4"), routerRecord("router-hangs", "router:5"))
		synctest.Wait()
		q := ask(agg, 4)
		q.ResumableFor = durationpb.New(10 * time.Second)
		accepted := lost(t, m, q, 3)
		resume := func(ctx context.Context, secret string, offset uint64) result {
			stream, err := elsewhere.Resume(ctx, &inferencev1.ResumeRequest{RequestId: accepted.GetRequestId(), Secret: secret, Offset: offset})
			if err != nil {
				t.Fatal(err)
			}
			return m.collect(stream, int(offset))
		}
		rest := resume(t.Context(), accepted.GetSecret(), 3) // while it runs
		if rest.err != nil || !strings.HasSuffix(story, rest.text) || rest.accepted.GetSecret() != accepted.GetSecret() {
			t.Errorf("%+v", rest)
		}
		whole := resume(t.Context(), accepted.GetSecret(), 0) // after it has ended
		if whole.err != nil || whole.text != story || len(whole.tokens) != len(rest.tokens)+3 {
			t.Errorf("%+v", whole)
		}
		if r := resume(t.Context(), accepted.GetSecret(), 1000); status.Code(r.err) != codes.InvalidArgument || rpc.Field(r.err) != "offset" {
			t.Errorf("an offset not reached: %v", r.err)
		}
		began := time.Now()
		if r := resume(t.Context(), strings.Repeat("0", 32), 0); rpc.Reason(r.err) != api.ReasonRequestNotFound || !strings.Contains(r.err.Error(), "nor to any other (2 of 3 did not answer)") {
			t.Errorf("with another secret: %v", r.err)
		}
		if took := time.Since(began); took > 2*time.Second { // of the bubble
			t.Errorf("it took %v to say that nobody has it", took)
		}
		asked := metadata.AppendToOutgoingContext(t.Context(), api.HeaderAskedByRouter, "1")
		if r := resume(asked, accepted.GetSecret(), 0); rpc.Reason(r.err) != api.ReasonRequestNotFound {
			t.Errorf("asked by a router: %v", r.err)
		}
		m.quiet()
	})
}

// A router without TLS believes nobody in etcd to be another one where clients' keys would go there.
func TestKeysGoToNoRouterWithoutTLS(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		key, record := auth.NewKey(time.Now())
		record.Tenant, record.Scopes, record.Limits = "acme", []string{string(auth.Generate)}, &controlv1.TenantLimits{RequestsPerMinute: 2}
		asks := auth.New(auth.Options{})
		asks.SetKeys([]*controlv1.ApiKey{record})
		_, elsewhere, end := m.another(t, asks)
		defer end()
		var met atomic.Int64
		misses := 0
		listener := m.net.Listen("router:6")
		var wait sync.WaitGroup
		wait.Go(func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				met.Add(1)
				_ = conn.Close()
			}
		})
		defer wait.Wait()
		defer func() { _ = listener.Close() }()
		m.members.set(true, routerRecord("router-forged", "router:6"))
		synctest.Wait()
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+key)
		stream, err := elsewhere.Resume(ctx, &inferencev1.ResumeRequest{RequestId: "a", Secret: strings.Repeat("0", 32)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); rpc.Reason(err) != api.ReasonRequestNotFound || !strings.Contains(err.Error(), "only over TLS") {
			t.Errorf("%v", err)
		}
		// Nor does a client ask for nothing that calls itself a router.
		asked := metadata.AppendToOutgoingContext(ctx, api.HeaderAskedByRouter, "1")
		for err = nil; rpc.Reason(err) != api.ReasonTenantQuota; {
			if stream, err = elsewhere.Resume(asked, &inferencev1.ResumeRequest{RequestId: "a", Secret: strings.Repeat("0", 32)}); err == nil {
				_, err = stream.Recv()
			}
			if misses++; misses > 99 {
				t.Fatalf("%d requests that there are not cost nothing: %v", misses, err)
			}
		}
		if n := met.Load(); n > 0 {
			t.Errorf("%d connections to a router that etcd alone names", n)
		}
		m.quiet()
	})
}

// A request that has nothing to show yet is found at another router all the same.
func TestResumeBeforeTheFirstEvent(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		d := m.start(func(ctx context.Context, _ *workertest.Worker, _ *workerv1.Task, stage workertest.Stage, _ int) error {
			if stage == workertest.Admit {
				time.Sleep(8 * time.Second)
			}
			return nil
		}, decodeRecord("d1"))[0]
		_, elsewhere, end := m.another(t, nil)
		defer end()
		m.members.set(true, d.Record, routerRecord("router-1", "router:1"), routerRecord("router-2", "router:3"))
		synctest.Wait()
		secret := rpc.NewID()
		ctx, leave := context.WithCancel(t.Context())
		defer time.AfterFunc(time.Second, leave).Stop()
		q := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", strings.NewReader(`{"prompt":"There was","stream":true,"resumable_for":"10s"}`))
		q.Header.Set("X-Request-Id", "mine")
		q.Header.Set("X-Tandem-Secret", secret)
		m.service.HTTP().ServeHTTP(httptest.NewRecorder(), q) // until it leaves
		stream, err := elsewhere.Resume(t.Context(), &inferencev1.ResumeRequest{RequestId: "mine", Secret: secret})
		if err != nil {
			t.Fatal(err)
		}
		if r := m.collect(stream, 0); r.err != nil || r.text != story {
			t.Errorf("%q, %v", r.text, r.err)
		}
	})
}

// A client that leaves the router between leaves the request: it ends when its time is over.
func TestClientLeavesTheRouterBetween(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.net.StepTime = time.Second
		d := m.start(nil, decodeRecord("d1"))[0]
		_, elsewhere, end := m.another(t, nil)
		defer end()
		m.members.set(true, d.Record, routerRecord("router-1", "router:1"), routerRecord("router-2", "router:3"))
		synctest.Wait()
		q := ask(agg, 4)
		q.ResumableFor = durationpb.New(5 * time.Second)
		accepted := lost(t, m, q, 2)
		ctx, leave := context.WithCancel(t.Context())
		stream, err := elsewhere.Resume(ctx, &inferencev1.ResumeRequest{RequestId: accepted.GetRequestId(), Secret: accepted.GetSecret(), Offset: 2})
		if err != nil {
			t.Fatal(err)
		}
		for range 10 { // longer than it could be without a client
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		leave()
		time.Sleep(4 * time.Second)
		if d.Open() != 1 {
			t.Error("ended too early")
		}
		time.Sleep(2 * time.Second)
		if d.Open() != 0 {
			t.Error("runs on")
		}
	})
}

// Over HTTP: a stream breaks, and goes on at the same router and at the other one, word for
// word. Neither an id nor a secret alone opens it.
func TestResumeOverHTTP(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.net.StepTime = 50 * time.Millisecond
		d := m.start(nil, decodeRecord("d1"))[0]
		other, _, end := m.another(t, nil)
		defer end()
		m.members.set(true, d.Record, routerRecord("router-1", "router:1"), routerRecord("router-2", "router:3"))
		synctest.Wait()
		const body = `{"prompt":"There was","stream":true,"resumable_for":"10s"}`
		send := func(ctx context.Context, at *router.Service, lastEventID, secret string) *httptest.ResponseRecorder {
			q := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", strings.NewReader(body))
			q.Header.Set("X-Request-Id", "story")
			q.Header.Set("X-Tandem-Secret", secret)
			q.Header.Set("Last-Event-ID", lastEventID)
			w := httptest.NewRecorder()
			at.HTTP().ServeHTTP(w, q)
			return w
		}
		secret := rpc.NewID()
		ctx, leave := context.WithCancel(t.Context())
		defer time.AfterFunc(1020*time.Millisecond, leave).Stop()
		begun := send(ctx, m.service, "", secret)
		ids, text := eventsOf(t, begun.Body.String())
		if len(ids) < 3 || !strings.HasPrefix(story, text) || begun.Header().Get("X-Tandem-Secret") != secret {
			t.Fatalf("%v %s", begun.Header(), begun.Body)
		}
		for name, at := range map[string]*router.Service{"the same": m.service, "the other": other} {
			w := send(t.Context(), at, ids[len(ids)-1], secret)
			_, rest := eventsOf(t, w.Body.String())
			if w.Code != http.StatusOK || text+rest != story || w.Header().Get("X-Request-Id") != "story" || !strings.HasSuffix(w.Body.String(), "data: [DONE]\n\n") {
				t.Errorf("%s: %d %q after %q: %s", name, w.Code, rest, text, w.Body)
			}
			for what, w := range map[string]*httptest.ResponseRecorder{
				"another's secret": send(t.Context(), at, ids[0], rpc.NewID()), "no secret": send(t.Context(), at, ids[0], ""), "another's id": send(t.Context(), at, "tale/3", secret),
			} {
				if w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), `"param":"Last-Event-ID","code":"request_not_found"`) {
					t.Errorf("%s, %s: %d %s", name, what, w.Code, w.Body)
				}
			}
			if w := send(t.Context(), at, "story/200", secret); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "200 is past the") {
				t.Errorf("%s: an event that has not come: %d %s", name, w.Code, w.Body)
			}
		}
		time.Sleep(12 * time.Second)
		if w := send(t.Context(), other, ids[0], secret); w.Code != http.StatusNotFound {
			t.Errorf("after its time: %d %s", w.Code, w.Body)
		}
		m.quiet()
	})
}

// eventsOf is the ids of the events of a stream, and their text.
func eventsOf(t *testing.T, stream string) (ids []string, text string) {
	t.Helper()
	for event := range strings.SplitSeq(strings.TrimSuffix(stream, "\n\n"), "\n\n") {
		first, data, _ := strings.Cut(event, "\n")
		id, has := strings.CutPrefix(first, "id: ")
		if !has {
			break // of an error
		}
		ids = append(ids, id)
		if _, rest, is := strings.Cut(data, `"text":"`); is {
			word, _, _ := strings.Cut(rest, `","logprobs"`)
			text += word
		}
	}
	return ids, text
}
