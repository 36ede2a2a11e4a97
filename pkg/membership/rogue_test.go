package membership_test

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/membership/membershiptest"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// A record that nobody keeps alive gives way to the worker that lives.
func TestRecordOfNobodyIsWrittenOver(t *testing.T) {
	for _, test := range []struct {
		name  string
		write func(t *testing.T, b *bubble)
	}{
		{"without a lease", func(t *testing.T, b *bubble) { b.store.Set(keyA, mustJSON(t, record("a", 2))) }},
		{"under the worker's own lease", func(t *testing.T, b *bubble) {
			b.store.SetUnder(b.store.Entry(keyA).Lease, keyA, mustJSON(t, record("a", 2)))
		}},
		{"of another worker, under a lease", func(t *testing.T, b *bubble) {
			b.store.SetUnder(b.store.GrantNow(10*time.Minute), keyA, mustJSON(t, record("b", 2)))
		}},
		{"again and again", func(t *testing.T, b *bubble) {
			for range 100 {
				b.store.Set(keyA, mustJSON(t, record("a", 2)))
				b.pass(700 * time.Millisecond)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				registration := b.register(b.client, record("a", 1))
				b.expect(true, 1)
				test.write(t, b)
				b.pass(6 * time.Second) // half of a lease, and a failed write
				b.expect(true, 1)
				if got := strings.Count(b.log.String(), "nobody keeps"); got != 1 {
					t.Errorf("said %d times, want once:\n%s", got, b.log.String())
				}
				if strings.Contains(b.log.String(), "another process registered") {
					t.Errorf("it took the record for a living process:\n%s", b.log.String())
				}
				if err := registration.Close(t.Context()); err != nil {
					t.Error(err)
				}
				b.expect(true)
			})
		})
	}
}

// Whatever somebody writes over a live worker's key, deletes or lets run out: once
// that is over, the worker's record is there again within one keep and one retry.
// While the other holds the place under a lease that lives, it has it.
func TestRegistrationOutlivesARogue(t *testing.T) {
	acts := []string{
		"write", "write under a lease", "write nonsense", "write too much", "write another's", "write under the worker's lease", "write its epoch",
		"renew", "revoke", "revoke the worker's", "delete", "lose leases", "wipe", "compact", "down", "up", "wait", "wait", "wait long",
	}
	rapid.Check(t, func(rt *rapid.T) {
		chosen := rapid.SliceOfN(rapid.SampledFrom(acts), 1, 40).Draw(rt, "acts")
		waits := rapid.SliceOfN(rapid.IntRange(1, 12000), len(chosen), len(chosen)).Draw(rt, "waits, ms")
		synctest.Test(t, func(t *testing.T) {
			r := &rogue{t: t, store: membershiptest.NewStore()}
			client := membership.New(r.store, r.store, membership.Config{}, slog.New(slog.DiscardHandler))
			client.Register(record("a", 1))
			for i, act := range chosen {
				r.act(act, time.Duration(waits[i])*time.Millisecond)
			}
			r.store.Up()
			time.Sleep(rogueTTL) // what lives of the rogue runs out
			time.Sleep(membership.DefaultLeaseTTL/2 + membership.RequestTimeout + 2*membership.RetryWait)
			synctest.Wait()
			entry := r.store.Entry(keyA)
			var there controlv1.WorkerRecord
			if err := protojson.Unmarshal(entry.Value, &there); err != nil || there.GetEpoch() != 1 || len(there.GetAddresses()) != 1 {
				rt.Errorf("after %v the key has %.200q", chosen, entry.Value)
			}
			if entry.Lease == 0 || entry.Lease == r.lease {
				rt.Errorf("after %v the record is under lease %d", chosen, entry.Lease)
			}
			if err := client.Close(); err != nil {
				rt.Error(err)
			}
			r.store.Wipe() // and with it the leases' timers
		})
	})
}

// rogueTTL is the lease of what the rogue writes under one.
const rogueTTL = 10 * time.Second

// rogue is somebody who may do anything to the store.
type rogue struct {
	t     *testing.T
	store *membershiptest.Store
	lease int64
}

func (r *rogue) act(act string, wait time.Duration) {
	other := mustJSON(r.t, record("a", 2))
	switch act {
	case "write":
		r.store.Set(keyA, other)
	case "write under a lease":
		r.store.SetUnder(r.grant(), keyA, other)
	case "write nonsense":
		r.store.SetUnder(r.grant(), keyA, "nonsense")
	case "write too much":
		huge := record("a", 2)
		huge.Version = strings.Repeat("x", 1<<20)
		r.store.SetUnder(r.grant(), keyA, mustJSON(r.t, huge))
	case "write another's":
		r.store.SetUnder(r.grant(), keyA, mustJSON(r.t, record("b", 2)))
	case "write under the worker's lease":
		r.store.SetUnder(r.store.Entry(keyA).Lease, keyA, other)
	case "write its epoch":
		its := record("a", 1)
		its.Addresses = nil
		r.store.Set(keyA, mustJSON(r.t, its))
	case "renew":
		r.store.RenewNow(r.lease)
	case "revoke":
		r.store.RevokeNow(r.lease)
	case "revoke the worker's":
		r.store.RevokeNow(r.store.Entry(keyA).Lease)
	case "delete":
		r.store.DeleteNow(keyA)
	case "lose leases":
		r.store.LoseLeases()
	case "wipe":
		r.store.Wipe()
	case "compact":
		r.store.Compact()
	case "down":
		r.store.Down()
	case "up":
		r.store.Up()
	case "wait":
		time.Sleep(wait / 10)
	case "wait long":
		time.Sleep(wait)
	}
	synctest.Wait()
}

// grant is a lease that lives.
func (r *rogue) grant() int64 {
	r.lease = r.store.GrantNow(rogueTTL)
	return r.lease
}
