package membership_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pkg/membership"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

func TestDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := membership.NewDirectory()
		check := func(id string, addresses ...string) bool {
			t.Helper()
			err := d.Check(t.Context(), id, addresses...)
			if err != nil && !errors.Is(err, membership.ErrUnregistered) {
				t.Errorf("check of %q: %v", id, err)
			}
			return err == nil
		}
		if check("decode-1", "10.0.0.1:7") {
			t.Error("somebody is registered before anything is known")
		}
		worker := &controlv1.WorkerRecord{Id: "decode-1", Addresses: []string{"10.0.0.1:1"}, KvAddresses: []string{"unix:///run/kv.sock", "10.0.0.1:7"}}
		earlier := &controlv1.WorkerRecord{Id: "decode-0", Addresses: []string{"10.0.0.2:1"}}
		d.Update(membership.View{Workers: []*controlv1.WorkerRecord{worker, earlier}})
		for _, c := range []struct {
			id         string
			addresses  []string
			registered bool
		}{
			{"decode-1", nil, true},
			{"decode-1", []string{"unix:///run/kv.sock", "10.0.0.1:7"}, true},
			{"decode-1", []string{"10.0.0.1:1"}, true},
			{"decode-1", []string{"10.0.0.1:7", "10.0.0.1:22"}, false},
			{"decode-1", []string{"unix:///run/docker.sock"}, false},
			{"decode-2", []string{"10.0.0.1:7"}, false},
			{"decode-0", []string{"10.0.0.2:9", "unix:///run/a.sock"}, true},
			{"decode-0", []string{"10.0.0.3:9"}, false},
			{"decode-0", []string{"10.0.0.2"}, false},
			{"", nil, false},
		} {
			if got := check(c.id, c.addresses...); got != c.registered {
				t.Errorf("%q at %q is registered: %v", c.id, c.addresses, got)
			}
		}

		// A router may see a record first.
		time.AfterFunc(100*time.Millisecond, func() {
			d.Update(membership.View{Workers: []*controlv1.WorkerRecord{worker, {Id: "decode-3", Addresses: []string{"h:1"}}}})
		})
		if !check("decode-3", "h:1") {
			t.Error("a record that comes soon is not waited for")
		}
		// decode-0 has gone: routers may go on with it for a while.
		if !check("decode-0", "10.0.0.2:9") {
			t.Error("a worker is forgotten with its record")
		}
		time.Sleep(time.Minute)
		if check("decode-0", "10.0.0.2:9") {
			t.Error("a worker is never forgotten")
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := d.Check(ended, "nobody"); !errors.Is(err, context.Canceled) {
			t.Errorf("after the end of its context: %v", err)
		}
	})
}

// What one role registers under another's id does not hide the other.
func TestDirectoryOfOneIDInTwoRoles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		worker := &controlv1.WorkerRecord{Id: "decode-1", Role: controlv1.Role_ROLE_DECODE, KvAddresses: []string{"10.0.0.1:7"}}
		store := &controlv1.WorkerRecord{Id: "decode-1", Role: controlv1.Role_ROLE_KVTRANSFER, KvAddresses: []string{"10.0.0.2:7"}}
		d := membership.NewDirectory()
		for _, workers := range [][]*controlv1.WorkerRecord{{worker, store}, {store, worker}, {store}} { // in the last, the worker has just gone
			d.Update(membership.View{Workers: workers})
			for _, address := range []string{"10.0.0.1:7", "10.0.0.2:7"} {
				if err := d.Check(t.Context(), "decode-1", address); err != nil {
					t.Errorf("of %v: %v", workers, err)
				}
			}
			if err := d.Check(t.Context(), "decode-1", "10.0.0.1:7", "10.0.0.2:7"); !errors.Is(err, membership.ErrUnregistered) {
				t.Errorf("at the addresses of both: %v", err)
			}
		}
		time.Sleep(time.Minute)
		if err := d.Check(t.Context(), "decode-1", "10.0.0.1:7"); !errors.Is(err, membership.ErrUnregistered) {
			t.Errorf("a minute after it has gone: %v", err)
		}
	})
}

// A record of another epoch in a worker's place, which any of its role may write, does not hide the
// worker before that has written its own again.
func TestDirectoryOfOneIDInTwoEpochs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		worker := &controlv1.WorkerRecord{Id: "decode-1", Role: controlv1.Role_ROLE_DECODE, Epoch: 1, KvAddresses: []string{"10.0.0.1:7"}}
		other := &controlv1.WorkerRecord{Id: "decode-1", Role: controlv1.Role_ROLE_DECODE, Epoch: 2, KvAddresses: []string{"10.0.0.2:7"}}
		moved := &controlv1.WorkerRecord{Id: "decode-1", Role: controlv1.Role_ROLE_DECODE, Epoch: 2, KvAddresses: []string{"10.0.0.3:7"}}
		d := membership.NewDirectory()
		for i, step := range []struct {
			record *controlv1.WorkerRecord
			after  time.Duration
			known  []string
		}{
			{worker, 0, []string{"10.0.0.1:7"}},
			{other, 0, []string{"10.0.0.1:7", "10.0.0.2:7"}},
			{moved, 0, []string{"10.0.0.1:7", "10.0.0.3:7"}},
			{worker, time.Second, []string{"10.0.0.1:7", "10.0.0.3:7"}},
			{moved, time.Minute, []string{"10.0.0.3:7"}},
		} {
			d.Update(membership.View{Workers: []*controlv1.WorkerRecord{step.record}})
			time.Sleep(step.after)
			for _, address := range []string{"10.0.0.1:7", "10.0.0.2:7", "10.0.0.3:7"} {
				if err := d.Check(t.Context(), "decode-1", address); (err == nil) != slices.Contains(step.known, address) {
					t.Errorf("step %d, at %s: %v", i, address, err)
				}
			}
		}
	})
}

func TestDirectoryIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := membership.NewDirectory()
		ctx, cancel := context.WithCancel(t.Context())
		seen, done := 0, make(chan error, 1)
		go func() { done <- d.Watch(ctx, func(v membership.View) { seen = len(v.Workers) }) }()
		synctest.Wait()
		d.Update(membership.View{Workers: []*controlv1.WorkerRecord{{Id: "a"}}})
		synctest.Wait()
		if seen != 1 {
			t.Errorf("the follower sees %d workers", seen)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
