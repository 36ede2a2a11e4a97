package membership_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/membership/membershiptest"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bubble is one client, its store, its log and what its watch last said.
type bubble struct {
	t        *testing.T
	store    *membershiptest.Store
	client   *membership.Client
	log      logBuffer
	logger   *slog.Logger // of all clients
	view     membership.View
	notified int
}

// logBuffer is written by all clients while the test reads it.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// inBubble runs a test under synctest with a client and a watch. All waits in it
// are virtual; synctest.Wait orders the test and the watch.
func inBubble(t *testing.T, test func(t *testing.T, b *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{t: t, store: membershiptest.NewStore()}
		b.logger = slog.New(slog.NewTextHandler(&b.log, nil))
		b.client = b.another()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- b.client.Watch(ctx, func(view membership.View) { b.view = view; b.notified++ })
		}()
		test(t, b)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Watch returned %v", err)
		}
		if err := b.client.Close(); err != nil {
			t.Error(err)
		}
	})
}

// another is one more client of the store.
func (b *bubble) another() *membership.Client {
	return membership.New(b.store, b.store, membership.Config{}, b.logger)
}

// pass lets time go by until everything waits.
func (b *bubble) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// expect checks the view: live or not, and these epochs.
func (b *bubble) expect(live bool, epochs ...uint64) {
	b.t.Helper()
	b.pass(100 * time.Millisecond) // views do not come faster
	var got []uint64
	for _, worker := range b.view.Workers {
		got = append(got, worker.GetEpoch())
	}
	if b.view.Live != live || len(got) != len(epochs) {
		b.t.Fatalf("the view has %v, live %v; want %v, live %v\n%s", got, b.view.Live, epochs, live, b.log.String())
	}
	for i := range got {
		if got[i] != epochs[i] {
			b.t.Fatalf("the view has %v, want %v", got, epochs)
		}
	}
}

func record(id string, epoch uint64) *controlv1.WorkerRecord {
	return &controlv1.WorkerRecord{Id: id, Role: controlv1.Role_ROLE_DECODE, Epoch: epoch, Addresses: []string{"127.0.0.1:7071"}}
}

var keyA = membership.WorkerKey(controlv1.Role_ROLE_DECODE, "a")

func (b *bubble) register(client *membership.Client, record *controlv1.WorkerRecord) *membership.Registration {
	b.t.Helper()
	registration := client.Register(record)
	if err := registration.Wait(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	return registration
}

func TestRegistrationRenewsAtHalfOfTheTimeLeft(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		registration := b.register(b.client, record("a", 1))
		b.expect(true, 1)
		notified := b.notified
		b.pass(time.Minute + time.Second)
		grants, renewals, puts := b.store.Counts()
		if grants != 1 || renewals != 12 || puts != 1 {
			t.Errorf("in a minute with a lease of 10 s there were %d grants, %d renewals, %d writes; want 1, 12, 1", grants, renewals, puts)
		}
		if b.notified != notified {
			t.Errorf("renewals notified %d times", b.notified-notified)
		}
		if err := registration.Close(t.Context()); err != nil {
			t.Error(err)
		}
		b.expect(true)
		if leases := b.store.Leases(); leases != 0 {
			t.Errorf("%d leases are left", leases)
		}
	})
}

func TestRegistrationComesBack(t *testing.T) {
	for _, test := range []struct {
		name   string
		lose   func(*bubble)
		within time.Duration
	}{
		{"lease lost", func(b *bubble) { b.store.LoseLeases() }, 6 * time.Second},
		{"record deleted", func(b *bubble) { b.store.DeleteNow(keyA) }, 6 * time.Second},
		{"record overwritten with nonsense", func(b *bubble) { b.store.Set(keyA, "nonsense") }, 6 * time.Second},
		{"short absence", func(b *bubble) { b.store.Down(); b.pass(3 * time.Second); b.store.Up() }, time.Second},
		{"long absence", func(b *bubble) { b.store.Down(); b.pass(30 * time.Second); b.expect(false, 1); b.store.Up() }, time.Second},
		{"long absence and data lost", func(b *bubble) {
			b.store.Down()
			b.store.Wipe()
			b.pass(30 * time.Second)
			b.expect(false, 1)
			b.store.Up()
		}, time.Second},
		{"data lost in an instant", func(b *bubble) { b.store.Wipe() }, 6 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				registration := b.register(b.client, record("a", 1))
				b.pass(7 * time.Second)
				test.lose(b)
				b.pass(test.within)
				b.expect(true, 1)
				if !strings.Contains(b.store.Value(keyA), "127.0.0.1:7071") {
					t.Errorf("the record is %q", b.store.Value(keyA))
				}
				registration.Update(func(r *controlv1.WorkerRecord) { r.Model = "fable"; r.Epoch = 99 })
				b.pass(time.Second)
				b.expect(true, 1) // the epoch is not for an update to change
				if got := b.view.Workers[0].GetModel(); got != "fable" {
					t.Errorf("model %q after an update", got)
				}
				b.pass(time.Minute)
				b.expect(true, 1)
				if err := registration.Close(t.Context()); err != nil {
					t.Error(err)
				}
				b.pass(time.Second)
				b.expect(true)
			})
		})
	}
}

func TestRegistrationStartsWithoutEtcd(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.store.Down()
		registration := b.client.Register(record("a", 1))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := registration.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait returned %v", err)
		}
		b.expect(false)
		b.store.Up()
		if err := registration.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		b.pass(time.Second)
		b.expect(true, 1)
		b.store.Down()
		start := time.Now()
		if err := registration.Close(t.Context()); err == nil || time.Since(start) > 3*time.Second {
			t.Errorf("Close without etcd returned %v after %s", err, time.Since(start))
		}
		b.store.Up()
		b.pass(12 * time.Second)
		b.expect(true) // the lease ran out
	})
}

func TestNewerProcessWins(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		other := b.another()
		older, newer := b.register(b.client, record("a", 1)), b.register(other, record("a", 2))
		b.expect(true, 2)
		older.Update(func(r *controlv1.WorkerRecord) { r.Model = "fable" })
		_, _, before := b.store.Counts()
		b.pass(10 * time.Minute)
		b.expect(true, 2)
		if _, _, after := b.store.Counts(); after != before {
			t.Errorf("%d writes while both live", after-before)
		}
		if got := strings.Count(b.log.String(), "another process registered"); got != 1 {
			t.Errorf("said %d times, want once", got)
		}
		// An absence of etcd takes both records; one gets the place and keeps it.
		b.store.Down()
		b.pass(time.Minute)
		b.store.Up()
		b.pass(10 * time.Second)
		_, _, before = b.store.Counts()
		b.pass(10 * time.Minute)
		if _, _, after := b.store.Counts(); after != before || len(b.view.Workers) != 1 {
			t.Errorf("%d writes after etcd was away, %d workers", after-before, len(b.view.Workers))
		}
		if err := newer.Close(t.Context()); err != nil {
			t.Error(err)
		}
		b.pass(11 * time.Second)
		b.expect(true, 1)
		if err := older.Close(t.Context()); err != nil {
			t.Error(err)
		}
		b.expect(true)
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestWatchSurvives(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		write := func(id string, epoch uint64) {
			b.store.Set(membership.WorkerKey(controlv1.Role_ROLE_DECODE, id), mustJSON(t, record(id, epoch)))
		}
		b.expect(true)
		write("b", 2)
		write("a", 1)
		b.expect(true, 1, 2)

		b.store.Set(keyA+"x", "nonsense")
		b.store.Set(membership.WorkerKey(controlv1.Role_ROLE_PREFILL, "z"), mustJSON(t, record("a", 5))) // under a wrong key
		b.expect(true, 1, 2)
		if got := strings.Count(b.log.String(), "malformed"); got != 2 {
			t.Errorf("malformed records were logged %d times, want 2", got)
		}

		b.store.Down()
		write("c", 3)
		b.store.Compact()
		b.pass(30 * time.Second)
		b.expect(false, 1, 2)
		b.store.Up()
		b.pass(time.Second)
		b.expect(true, 1, 2, 3)
		if got := strings.Count(b.log.String(), "malformed"); got != 2 {
			t.Errorf("a new listing repeated the log: %d", got)
		}

		b.store.Deafen(true) // a watch that is stuck while etcd answers
		write("d", 4)
		b.store.DeleteNow(keyA)
		b.pass(5 * time.Second)
		b.expect(true, 2, 3, 4)
		b.store.Deafen(false)

		b.store.Compact()
		write("a", 6)
		b.pass(time.Second)
		b.expect(true, 6, 2, 3, 4)

		b.store.Wipe() // and its revisions begin anew
		write("e", 7)
		b.pass(5 * time.Second)
		b.expect(true, 7)
		write("a", 8)
		b.expect(true, 8, 7)
	})
}

// An etcd that is gone for good, as people know, is not asked nor complained about.
func TestAbandon(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		registration := b.register(b.client, record("a", 1))
		b.expect(true, 1)
		b.store.Down()
		b.client.Abandon()
		b.pass(time.Minute)
		b.expect(false, 1)
		began := time.Now()
		if err := registration.Close(t.Context()); err != nil || time.Since(began) != 0 {
			t.Errorf("the registration closed after %s: %v", time.Since(began), err)
		}
		if _, err := b.client.SetPolicy(t.Context(), &controlv1.Policy{}, membership.AnyRevision); err == nil || !strings.Contains(err.Error(), "etcd is gone") {
			t.Errorf("the policy was set: %v", err)
		}
		if b.log.String() != "" {
			t.Errorf("it said:\n%s", b.log.String())
		}
	})
}

func TestPolicy(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		var said []*controlv1.Policy
		var revisions []int64
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- b.client.WatchPolicy(ctx, func(p *controlv1.Policy, revision int64) {
				said, revisions = append(said, p), append(revisions, revision)
			})
		}()
		synctest.Wait()
		three := &controlv1.Policy{TenantMaxRequests: proto.Uint32(3)}
		set := func(ifRevision int64) (revision int64) {
			t.Helper()
			revision, err := b.client.SetPolicy(t.Context(), three, ifRevision)
			if err != nil {
				t.Error(err)
			}
			return revision
		}
		first := set(0)
		b.pass(time.Second)
		if _, err := b.client.SetPolicy(t.Context(), &controlv1.Policy{}, 0); !errors.Is(err, membership.ErrConflict) {
			t.Errorf("SetPolicy where there is another one returned %v", err)
		}
		b.store.Set("/tandem/v1/policy", "nonsense") // the one before stands
		b.store.Set("/tandem/v1/policy-of-others", "{}")
		b.pass(time.Second)
		b.store.Down()
		b.pass(30 * time.Second)
		b.store.Up()
		b.pass(time.Second)
		second := set(revisions[len(revisions)-1]) // that of the nonsense
		b.pass(time.Second)
		b.store.DeleteNow("/tandem/v1/policy")
		b.pass(time.Second)
		empty := &controlv1.Policy{}
		if !slices.EqualFunc(said, []*controlv1.Policy{empty, three, three, three, empty}, func(a, b *controlv1.Policy) bool { return proto.Equal(a, b) }) {
			t.Fatalf("got %v, want empty, 3, 3, 3, empty", said)
		}
		if revisions[0] != 0 || revisions[1] != first || revisions[2] <= first || revisions[3] != second || revisions[4] != 0 {
			t.Errorf("revisions %v, want 0, %d, between, %d, 0", revisions, first, second)
		}
		b.store.Down()
		if _, err := b.client.SetPolicy(t.Context(), three, membership.AnyRevision); err == nil || err.Error() != "set policy: etcd does not answer: try again once it does" {
			t.Errorf("SetPolicy without etcd returned %v", err)
		}
		b.store.Up()
		cancel()
		<-ended
	})
}

func TestValidate(t *testing.T) {
	for _, endpoints := range [][]string{nil, {""}, {"127.0.0.1:2379"}, {"ftp://a"}, {"http://"}, {"http://a", "b"}} {
		if err := (membership.Config{Endpoints: endpoints}).Validate(); err == nil || !strings.Contains(err.Error(), "http://127.0.0.1:2379") {
			t.Errorf("%q: %v does not say what to give", endpoints, err)
		}
	}
	if err := (membership.Config{Endpoints: []string{"http://a:2379", "https://b:2379"}}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestWorkerKey(t *testing.T) {
	for got, want := range map[string]string{
		membership.WorkerKey(controlv1.Role_ROLE_ROUTER, "router-1"):            "/tandem/v1/workers/router/router-1",
		membership.WorkerKey(controlv1.Role_ROLE_PREFILL, "prefill-1"):          "/tandem/v1/workers/prefill/prefill-1",
		membership.WorkerKey(controlv1.Role_ROLE_DECODE, "decode-1"):            "/tandem/v1/workers/decode/decode-1",
		membership.WorkerKey(controlv1.Role_ROLE_KVTRANSFER, "10.0.0.1:7071/x"): "/tandem/v1/workers/kvtransfer/10.0.0.1:7071%2Fx",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func mustJSON(t *testing.T, record *controlv1.WorkerRecord) string {
	t.Helper()
	value, err := protojson.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	return string(value)
}

// TestAwaitFree: an id is free once the lease of who crashed has run out. Who lives keeps it.
func TestAwaitFree(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		free := func(id string) error { return b.client.AwaitFree(t.Context(), record(id, 1).GetRole(), id) }
		other := b.another()
		registration := b.register(other, record("a", 1))
		if err := free("b"); err != nil {
			t.Errorf("an id that nobody has: %v", err)
		}
		if err := free("a"); !errors.Is(err, membership.ErrTaken) {
			t.Errorf("one that another process keeps: %v", err)
		}
		if err := other.Close(); err != nil { // leaves the record
			t.Error(err)
		}
		if err := free("a"); err != nil {
			t.Errorf("one of a process that crashed: %v", err)
		}
		b.store.Set(keyA, mustJSON(t, record("a", 2))) // under no lease: nobody keeps it alive
		if err := free("a"); err != nil {
			t.Errorf("one of a record without a lease: %v", err)
		}
		if err := registration.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
