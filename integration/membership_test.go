package integration_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/embedded"
	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/membership"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// startEtcd starts etcd; port 0 is any.
func startEtcd(t *testing.T, dir string, port int) *embedded.Etcd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	server, err := embedded.StartEtcd(ctx, embedded.EtcdConfig{DataDir: dir, Port: port})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server
}

// connectEtcd makes a client with times short enough for a test.
func connectEtcd(t *testing.T, endpoint string) *membership.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	client, err := membership.Connect(ctx, membership.Config{
		Endpoints:      []string{endpoint},
		LeaseTTL:       2 * time.Second,
		RequestTimeout: time.Second,
		ProbeInterval:  300 * time.Millisecond,
		RetryWait:      100 * time.Millisecond,
	}, testLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}

// watchViews watches in a goroutine of its own, which the test waits for.
func watchViews(t *testing.T, client *membership.Client) <-chan membership.View {
	t.Helper()
	views := make(chan membership.View, 1024)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- client.Watch(ctx, func(view membership.View) { views <- view }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Watch returned %v", err)
		}
	})
	return views
}

// awaitView waits for a view that will do.
func awaitView(t *testing.T, views <-chan membership.View, what string, good func(membership.View) bool) membership.View {
	t.Helper()
	late := time.After(timeout)
	var last membership.View
	for {
		select {
		case last = <-views:
			if good(last) {
				return last
			}
		case <-late:
			t.Fatalf("no view with %s; the last is %+v", what, last)
		}
	}
}

func workerRecord(id string, epoch uint64) *controlv1.WorkerRecord {
	return &controlv1.WorkerRecord{
		Id: id, Role: controlv1.Role_ROLE_DECODE, Epoch: epoch,
		Addresses: []string{"127.0.0.1:7071"}, State: controlv1.WorkerState_WORKER_STATE_SERVING,
	}
}

func register(t *testing.T, client *membership.Client, record *controlv1.WorkerRecord) *membership.Registration {
	t.Helper()
	registration := client.Register(record)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := registration.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	return registration
}

// has says that exactly one worker is there, with this epoch.
func has(epoch uint64) func(membership.View) bool {
	return func(view membership.View) bool {
		return view.Live && len(view.Workers) == 1 && view.Workers[0].GetEpoch() == epoch
	}
}

func gone(view membership.View) bool { return view.Live && len(view.Workers) == 0 }

func absent(view membership.View) bool { return !view.Live }

func TestMembershipOnRealEtcd(t *testing.T) {
	t.Parallel()
	server := startEtcd(t, t.TempDir(), 0)
	worker, router := connectEtcd(t, server.Endpoint()), connectEtcd(t, server.Endpoint())
	views := watchViews(t, router)

	record := workerRecord("10.0.0.1:7071/a b", 1<<63+5)
	registration := register(t, worker, record)
	view := awaitView(t, views, "the worker", has(1<<63+5))
	if !proto.Equal(view.Workers[0], record) {
		t.Errorf("the view has %v, want %v", view.Workers[0], record)
	}
	registration.Update(func(r *controlv1.WorkerRecord) { r.State = controlv1.WorkerState_WORKER_STATE_DRAINING })
	awaitView(t, views, "the worker draining", func(view membership.View) bool {
		return len(view.Workers) == 1 && view.Workers[0].GetState() == controlv1.WorkerState_WORKER_STATE_DRAINING
	})
	// A renewal or two must not change or lose anything. On a machine that is busy,
	// etcd may be late to answer, which is all that a view may say then.
	clustertest.Pass(2500 * time.Millisecond)
	select {
	case view := <-views:
		if len(view.Workers) != 1 || view.Workers[0].GetState() != controlv1.WorkerState_WORKER_STATE_DRAINING {
			t.Errorf("the view changed without reason: %+v", view)
		}
	default:
	}
	if err := registration.Close(t.Context()); err != nil {
		t.Log(err) // on a busy machine: then it expires
	}
	awaitView(t, views, "no worker", gone)
}

func TestMembershipSurvivesEtcd(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		// wipe removes etcd's data while it is away.
		wipe bool
		// away is how long it is away beyond being noticed; the lease is 2 s.
		away time.Duration
	}{
		{"a blip", false, 0},
		{"longer than the lease", false, 3 * time.Second},
		{"its data lost", true, 3 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir, port := t.TempDir(), clustertest.FreePort(t)
			server := startEtcd(t, dir, port)
			worker, router := connectEtcd(t, server.Endpoint()), connectEtcd(t, server.Endpoint())
			views := watchViews(t, router)
			registration := register(t, worker, workerRecord("decode-1", 7))
			awaitView(t, views, "the worker", has(7))

			server.Close()
			view := awaitView(t, views, "etcd away", absent)
			if len(view.Workers) != 1 {
				t.Errorf("while etcd is away the view has %d workers, want the last known one", len(view.Workers))
			}
			registration.Update(func(r *controlv1.WorkerRecord) { r.Model = "fable" })
			clustertest.Pass(test.away)
			if test.wipe {
				if err := os.RemoveAll(filepath.Join(dir, "etcd")); err != nil {
					t.Fatal(err)
				}
			}
			startEtcd(t, dir, port)
			back := time.Now()
			awaitView(t, views, "the worker's update", func(view membership.View) bool {
				return has(7)(view) && view.Workers[0].GetModel() == "fable"
			})
			t.Logf("registered and seen %s after etcd was back", time.Since(back).Round(time.Millisecond))
			// The watch must go on, not only the listing.
			registration.Update(func(r *controlv1.WorkerRecord) { r.Model = "parable" })
			awaitView(t, views, "the second update", func(view membership.View) bool {
				return has(7)(view) && view.Workers[0].GetModel() == "parable"
			})
			if err := registration.Close(t.Context()); err != nil {
				t.Log(err) // on a busy machine: then it expires
			}
			awaitView(t, views, "no worker", gone)
		})
	}
}

func TestMembershipDeadWorkerGoes(t *testing.T) {
	t.Parallel()
	server := startEtcd(t, t.TempDir(), 0)
	views := watchViews(t, connectEtcd(t, server.Endpoint()))
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	worker, err := membership.Connect(ctx, membership.Config{Endpoints: []string{server.Endpoint()}, LeaseTTL: 2 * time.Second},
		testLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	register(t, worker, workerRecord("decode-1", 7))
	awaitView(t, views, "the worker", has(7))
	if err := worker.Close(); err != nil { // without closing its registration, as if killed
		t.Fatal(err)
	}
	awaitView(t, views, "no worker", gone)
}

func TestMembershipNewerProcessWins(t *testing.T) {
	t.Parallel()
	server := startEtcd(t, t.TempDir(), 0)
	older, newer := connectEtcd(t, server.Endpoint()), connectEtcd(t, server.Endpoint())
	views := watchViews(t, connectEtcd(t, server.Endpoint()))
	oldRegistration := register(t, older, workerRecord("decode-1", 1))
	awaitView(t, views, "the older", has(1))
	newRegistration := register(t, newer, workerRecord("decode-1", 2))
	awaitView(t, views, "the newer", has(2))
	oldRegistration.Update(func(r *controlv1.WorkerRecord) { r.Model = "fable" })
	clustertest.Pass(3 * time.Second) // more than a lease: the older one has looked
	for looked := false; !looked; {
		select {
		case view := <-views: // on a busy machine etcd may have been late, and the same was told again
			if has(1)(view) {
				t.Errorf("the older process wrote over the newer: %+v", view)
			}
		default:
			looked = true
		}
	}
	for _, registration := range []*membership.Registration{newRegistration, oldRegistration} {
		if err := registration.Close(t.Context()); err != nil {
			t.Log(err) // on a busy machine: then it expires
		}
		if registration == newRegistration {
			awaitView(t, views, "the older again", has(1))
		}
	}
	awaitView(t, views, "no worker", gone)
}

func TestPolicyOnRealEtcd(t *testing.T) {
	t.Parallel()
	server := startEtcd(t, t.TempDir(), 0)
	client := connectEtcd(t, server.Endpoint())
	policies := make(chan *controlv1.Policy, 16)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- client.WatchPolicy(ctx, func(p *controlv1.Policy, _ int64) { policies <- p }) }()
	defer func() {
		cancel()
		<-ended
	}()
	receive := func() *controlv1.Policy {
		select {
		case policy := <-policies:
			return policy
		case <-time.After(timeout):
			t.Fatal("no policy")
			return nil
		}
	}
	if policy := receive(); !proto.Equal(policy, &controlv1.Policy{}) {
		t.Errorf("at first the policy is %v, want an empty one", policy)
	}
	want := &controlv1.Policy{DisaggregateMinTokens: proto.Uint32(0), TenantMaxRequests: proto.Uint32(3)}
	if _, err := client.SetPolicy(t.Context(), want, membership.AnyRevision); err != nil {
		t.Fatal(err)
	}
	if policy := receive(); !proto.Equal(policy, want) {
		t.Errorf("the policy is %v, want %v", policy, want)
	}
}

func TestConnectToNoEtcd(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent := "http://" + listener.Addr().String() // takes connections and never answers
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, conn) }()
		}
	}()
	for _, endpoint := range []string{"http://127.0.0.1:1", silent} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := membership.Connect(ctx, membership.Config{Endpoints: []string{endpoint}}, testLogger(t))
		cancel()
		if err == nil || !strings.Contains(err.Error(), endpoint) || strings.Contains(err.Error(), "\n") {
			t.Errorf("the error %v is not one line that names %s", err, endpoint)
		}
		t.Log(err)
	}
}

func TestEmbeddedEtcdRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := startEtcd(t, dir, 0)
	if _, err := embedded.StartEtcd(t.Context(), embedded.EtcdConfig{DataDir: dir}); err == nil || !strings.Contains(err.Error(), "is in use") {
		t.Errorf("on data in use the error is %v", err)
	}
	taken := embedded.EtcdConfig{DataDir: t.TempDir(), Port: portOf(t, server.Endpoint())}
	if _, err := embedded.StartEtcd(t.Context(), taken); err == nil || !strings.Contains(err.Error(), "already in use") {
		t.Errorf("on a port in use the error is %v", err)
	}
}

// testLogger logs to the test, which shows it if it fails.
func testLogger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// writeRaw writes keys of the membership without a lease, as somebody else would.
func writeRaw(t *testing.T, endpoint string, count int, entry func(i int) (key, value string)) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for done := 0; done < count; {
		var puts []clientv3.Op
		for bytes := 0; done < count && len(puts) < 100 && bytes < 1<<20; done++ {
			key, value := entry(done)
			puts, bytes = append(puts, clientv3.OpPut(key, value)), bytes+len(key)+len(value)
		}
		if _, err := client.Txn(ctx).Then(puts...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

// A record that nobody keeps, over that of a live worker, does not stay.
func TestMembershipRecordOfNobody(t *testing.T) {
	t.Parallel()
	server := startEtcd(t, t.TempDir(), 0)
	views := watchViews(t, connectEtcd(t, server.Endpoint()))
	registration := register(t, connectEtcd(t, server.Endpoint()), workerRecord("decode-1", 1))
	awaitView(t, views, "the worker", has(1))
	for epoch := range uint64(3) {
		value, err := protojson.Marshal(workerRecord("decode-1", 100+epoch))
		if err != nil {
			t.Fatal(err)
		}
		writeRaw(t, server.Endpoint(), 1, func(int) (string, string) {
			return membership.WorkerKey(controlv1.Role_ROLE_DECODE, "decode-1"), string(value)
		})
		awaitView(t, views, "the other", has(100+epoch))
		awaitView(t, views, "the worker again", has(1))
	}
	if err := registration.Close(t.Context()); err != nil {
		t.Log(err) // on a busy machine: then it expires
	}
	awaitView(t, views, "no worker", gone)
}

// Thousands of records that are none, of all sizes that etcd takes, change nothing
// for who watches, who begins to, and who keeps a record among them.
func TestMembershipUnderAFlood(t *testing.T) {
	t.Parallel()
	server := startEtcd(t, t.TempDir(), 0)
	views := watchViews(t, connectEtcd(t, server.Endpoint()))
	worker := connectEtcd(t, server.Endpoint())
	registration := register(t, worker, workerRecord("decode-1", 1))
	awaitView(t, views, "the worker", has(1))
	writeRaw(t, server.Endpoint(), 2500, func(i int) (string, string) {
		bogus := workerRecord(fmt.Sprintf("decode-1%d", i), 7) // its key begins as the worker's
		switch {
		case i%100 == 0:
			bogus.Version = strings.Repeat("x", 1<<20)
		case i%3 == 0:
			bogus.Version = strings.Repeat("x", 30<<10)
		default:
			bogus.Id += strings.Repeat("/", 300)
		}
		value, err := protojson.Marshal(bogus)
		if err != nil {
			t.Error(err)
		}
		return membership.WorkerKey(bogus.GetRole(), bogus.GetId()), string(value)
	})
	registration.Update(func(r *controlv1.WorkerRecord) { r.Model = "fable" })
	updated := func(view membership.View) bool { return has(1)(view) && view.Workers[0].GetModel() == "fable" }
	awaitView(t, views, "the update", updated)
	awaitView(t, watchViews(t, connectEtcd(t, server.Endpoint())), "the worker among them", updated)
	if err := registration.Close(t.Context()); err != nil {
		t.Log(err) // on a busy machine: then it expires
	}
	awaitView(t, views, "no worker", gone)
}
