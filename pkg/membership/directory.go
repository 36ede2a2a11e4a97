package membership

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pkg/api"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// ErrUnregistered is wrapped by Directory.Check.
var ErrUnregistered = errors.New("not registered")

const (
	// registeredWait is how much sooner a router may see a record than this process does.
	registeredWait = time.Second
	// departedKeep is how long a worker counts as registered after its record is gone, or one of
	// another epoch is in its place: longer than routers go on with one whose lease ended while it
	// lives, and than a worker takes to write its own record again.
	departedKeep = time.Minute
	// maxDeparted bounds those.
	maxDeparted = 1024
)

// Directory says which workers are registered, and where. One watch feeds it, and any number of
// others follow it. All methods are safe for concurrent use.
type Directory struct {
	mu      sync.Mutex
	view    *View // nil: not known yet
	records map[place][]registered
	changed chan struct{} // closed by the next Update
}

// place is where a record is. Roles may have the same ids, and one may write what it likes under its
// own prefix: that must not hide another's record.
type place struct {
	role controlv1.Role
	id   string
}

type registered struct {
	record *controlv1.WorkerRecord
	until  time.Time // how long it still counts; zero: it is in the view
}

// NewDirectory returns a directory that waits for its first view.
func NewDirectory() *Directory {
	return &Directory{changed: make(chan struct{})}
}

// Update takes in a view, as Client.Watch tells it.
func (d *Directory) Update(view View) {
	d.mu.Lock()
	defer d.mu.Unlock()
	records := make(map[place][]registered, len(view.Workers))
	for _, record := range view.Workers {
		at := place{record.GetRole(), record.GetId()}
		records[at] = append(records[at], registered{record: record})
	}
	now, departed := time.Now(), 0
	for at, known := range d.records {
		for _, before := range known {
			if before.until.IsZero() {
				before.until = now.Add(departedKeep)
			}
			there := slices.ContainsFunc(records[at], func(r registered) bool { return r.record.GetEpoch() == before.record.GetEpoch() })
			if !there && now.Before(before.until) && departed < maxDeparted {
				records[at] = append(records[at], before)
				departed++
			}
		}
	}
	d.view, d.records = &view, records
	close(d.changed)
	d.changed = make(chan struct{})
}

// Watch is Client.Watch of what Update takes in.
func (d *Directory) Watch(ctx context.Context, notify func(View)) error {
	for {
		d.mu.Lock()
		view, changed := d.view, d.changed
		d.mu.Unlock()
		if view != nil {
			notify(*view)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Check refuses a worker that is not registered, in whatever role, or not at all of the addresses at
// which it is to be sent KV. A record that is about to be seen is waited for, for a second at most. Its error
// wraps ErrUnregistered, or is that of ctx.
func (d *Directory) Check(ctx context.Context, id string, kvAddresses ...string) error {
	late := time.NewTimer(registeredWait)
	defer late.Stop()
	for {
		changed, err := d.check(id, kvAddresses)
		if err == nil {
			return nil
		}
		select {
		case <-changed:
		case <-late.C:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (d *Directory) check(id string, kvAddresses []string) (changed <-chan struct{}, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	err = fmt.Errorf("worker %q is %w", shown(id), ErrUnregistered)
	for role := range controlv1.Role_name {
		for _, found := range d.records[place{controlv1.Role(role), id}] {
			if !found.until.IsZero() && !now.Before(found.until) {
				continue
			}
			wrong := slices.IndexFunc(kvAddresses, func(address string) bool { return !receivesAt(found.record, address) })
			if wrong < 0 {
				return nil, nil
			}
			err = fmt.Errorf("worker %q is %w at %s", shown(id), ErrUnregistered, shown(kvAddresses[wrong]))
		}
	}
	return d.changed, err
}

// receivesAt says whether a worker receives KV at an address. The record of an earlier version
// does not say where it does: any port of its hosts, and any socket, then counts.
func receivesAt(record *controlv1.WorkerRecord, address string) bool {
	if slices.Contains(record.GetKvAddresses(), address) || slices.Contains(record.GetAddresses(), address) {
		return true
	}
	if len(record.GetKvAddresses()) > 0 {
		return false
	}
	if strings.HasPrefix(address, api.UnixScheme) {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	return err == nil && slices.ContainsFunc(record.GetAddresses(), func(own string) bool {
		at, _, err := net.SplitHostPort(own)
		return err == nil && at == host
	})
}
