package membership_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/membership"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// set writes a record as somebody else would.
func (b *bubble) set(record *controlv1.WorkerRecord) {
	b.store.Set(membership.WorkerKey(record.GetRole(), record.GetId()), mustJSON(b.t, record))
}

// A flood of records costs few views and few lines, whatever is in them.
func TestWatchUnderAFlood(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		registration := b.register(b.client, record("a", 1))
		b.expect(true, 1)
		before := b.notified
		began := time.Now()
		for i := range 3000 {
			bogus := record(fmt.Sprintf("bogus-%d", i), 7)
			switch i % 4 {
			case 0:
				bogus.Version = strings.Repeat("x", 20<<10)
			case 1:
				bogus.Id += strings.Repeat("/", 300)
			case 2:
				bogus.Addresses = make([]string, 1000)
			case 3:
				bogus.Role = 99
			}
			b.set(bogus)
			if i%3 == 0 {
				b.pass(time.Millisecond)
			}
		}
		took := time.Since(began)
		b.expect(true, 1)
		if got, most := b.notified-before, int(took/(100*time.Millisecond))+3; got > most {
			t.Errorf("%d views in %s, want %d at most", got, took, most)
		}
		if got := strings.Count(b.log.String(), "malformed"); got != 10 {
			t.Errorf("%d lines of malformed records, want 10", got)
		}
		if len(b.log.String()) > 8<<10 {
			t.Errorf("the log has %d bytes", len(b.log.String()))
		}
		b.pass(time.Minute)
		b.store.Set(keyA+"x", "{")
		b.expect(true, 1)
		if !strings.Contains(b.log.String(), "unsaid=2990") {
			t.Errorf("what was not said is not counted:\n%s", b.log.String())
		}
		if err := registration.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Of more workers than are looked at, those who were there first stay, in events
// as in listings, and what was left out comes in once there is room.
func TestWatchOfTooManyWorkers(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.set(record("z", 1)) // the last by key, the first by time
		id := func(i int) string { return fmt.Sprintf("bogus-%05d", i) }
		for i := range membership.MaxWorkers + 10 {
			b.set(record(id(i), 2))
		}
		has := func(want bool, id string) {
			t.Helper()
			found := false
			for _, w := range b.view.Workers {
				found = found || w.GetId() == id
			}
			if found != want || len(b.view.Workers) != membership.MaxWorkers {
				t.Errorf("%s: %v, of %d workers", id, found, len(b.view.Workers))
			}
		}
		b.pass(time.Second)
		has(true, "z")
		has(false, id(membership.MaxWorkers+5))
		b.store.Down()
		b.pass(10 * time.Second)
		b.store.Up()
		b.pass(10 * time.Second)
		has(true, "z")
		has(false, id(membership.MaxWorkers+5))
		if got := strings.Count(b.log.String(), "ignoring the newest"); got != 2 {
			t.Errorf("said %d times, want once a listing", got)
		}
		for i := range 7 {
			b.store.DeleteNow(membership.WorkerKey(controlv1.Role_ROLE_DECODE, id(i)))
		}
		b.pass(5 * time.Second)
		has(true, "z")
		has(true, id(membership.MaxWorkers+5))
		has(false, id(membership.MaxWorkers+9))
	})
}

func TestPolicyThatIsTooLong(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		long := &controlv1.Policy{Versions: []*controlv1.ModelVersion{{Model: strings.Repeat("x", 20<<10)}}}
		if _, err := b.client.SetPolicy(t.Context(), long, membership.AnyRevision); err == nil || !strings.Contains(err.Error(), "bytes") {
			t.Errorf("SetPolicy returned %v", err)
		}
		value, err := protojson.Marshal(long)
		if err != nil {
			t.Fatal(err)
		}
		b.store.Set("/tandem/v1/policy", string(value))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		var said []*controlv1.Policy
		go func() {
			ended <- b.client.WatchPolicy(ctx, func(p *controlv1.Policy, _ int64) { said = append(said, p) })
		}()
		b.pass(time.Second)
		cancel()
		<-ended
		if len(said) != 1 || !proto.Equal(said[0], &controlv1.Policy{}) {
			t.Errorf("the policy is %.100v", said)
		}
	})
}

func FuzzReadRecord(f *testing.F) {
	for _, seed := range []string{
		"", "{}", "nonsense", `{"id":"a","role":"ROLE_DECODE","epoch":"1"}`, `{"id":"a","role":3}`, `{"id":"a","role":-3}`,
		`{"id":"a","role":"ROLE_DECODE","epoch":"1","addresses":["127.0.0.1:1"],"layout":{"layers":4},"unknown":[[[[]]]]}`,
		`{"id":"a/b","role":"ROLE_DECODE"}`, "\xff", `{"id":"\ud800"}`,
	} {
		f.Add("/tandem/v1/workers/decode/a", []byte(seed))
	}
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		record, err := membership.ReadRecord(membership.Entry{Key: key, Value: value})
		if (record == nil) == (err == nil) {
			t.Fatalf("record %v, error %v", record, err)
		}
		if err != nil {
			return
		}
		if got := membership.WorkerKey(record.GetRole(), record.GetId()); got != key {
			t.Errorf("taken under %q: its key is %q", key, got)
		}
		if len(record.GetAddresses()) > 16 || len(record.GetId()) > 256 || record.GetId() == "" || proto.Size(record) > 16<<10 {
			t.Errorf("out of bounds: %.200v", record)
		}
		again, err := protojson.Marshal(record)
		if err != nil {
			t.Fatalf("cannot be written: %v", err)
		}
		if len(again) > 16<<10 {
			return // escapes
		}
		if other, err := membership.ReadRecord(membership.Entry{Key: key, Value: again}); err != nil || !proto.Equal(record, other) {
			t.Errorf("read again it is %v, %v; want %v", other, err, record)
		}
	})
}

func FuzzReadPolicy(f *testing.F) {
	for _, seed := range []string{"", "{}", "nonsense", `{"routing":"slo","versions":[{"model":"m","weight":3}]}`, `{"tenantMaxRequests":-1}`, `{"x":[[[[]]]]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		policy := &controlv1.Policy{}
		if membership.ReadPolicy(value, policy) != nil {
			return
		}
		if _, err := protojson.Marshal(policy); err != nil {
			t.Fatalf("cannot be written: %v", err)
		}
	})
}

// What is read as an API key either can be used, and then names a tenant and what it may do, or is
// found out by CheckKey.
func FuzzReadKey(f *testing.F) {
	for _, seed := range []string{
		"", "{}", "nonsense", `{"id":"0123456789ab","sha256":"AAAA","tenant":"acme","scopes":["generate"],"created":"2026-01-01T00:00:00Z"}`,
		`{"id":"0123456789ab","limits":{"requestsPerMinute":"18446744073709551615"},"revoked":"9999-12-31T23:59:59Z"}`, `{"id":"a/../b"}`,
	} {
		f.Add("/tandem/v1/keys/0123456789ab", []byte(seed))
	}
	f.Fuzz(func(t *testing.T, at string, value []byte) {
		key, err := membership.ReadKey(membership.Entry{Key: at, Value: value})
		if (key == nil) == (err == nil) {
			t.Fatalf("key %v, error %v", key, err)
		}
		if err == nil && at != "/tandem/v1/keys/"+key.GetId() {
			t.Errorf("taken under %q: it is %q", at, key.GetId())
		}
		if err == nil && proto.Size(key) > 16<<10 {
			t.Errorf("out of bounds: %.200v", key)
		}
	})
}
