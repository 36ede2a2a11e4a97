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
	// departedKeep is how long a worker counts as registered after its record is gone: longer
	// than routers go on with one whose lease ended while it lives.
	departedKeep = time.Minute
	// maxDeparted bounds those.
	maxDeparted = 1024
)

// Directory says which workers are registered, and where. One watch feeds it, and any number of
// others follow it. All methods are safe for concurrent use.
type Directory struct {
	mu       sync.Mutex
	view     *View                              // nil: not known yet
	workers  map[string]*controlv1.WorkerRecord // of the view, by id
	departed map[string]departed                // no longer in the view
	changed  chan struct{}                      // closed by the next Update
}

type departed struct {
	record *controlv1.WorkerRecord
	until  time.Time
}

// NewDirectory returns a directory that waits for its first view.
func NewDirectory() *Directory {
	return &Directory{departed: make(map[string]departed), changed: make(chan struct{})}
}

// Update takes in a view, as Client.Watch tells it.
func (d *Directory) Update(view View) {
	d.mu.Lock()
	defer d.mu.Unlock()
	workers := make(map[string]*controlv1.WorkerRecord, len(view.Workers))
	for _, record := range view.Workers {
		workers[record.GetId()] = record
	}
	now := time.Now()
	for id, gone := range d.departed {
		if workers[id] != nil || !now.Before(gone.until) {
			delete(d.departed, id)
		}
	}
	for id, record := range d.workers {
		if workers[id] == nil && len(d.departed) < maxDeparted {
			d.departed[id] = departed{record, now.Add(departedKeep)}
		}
	}
	d.view, d.workers = &view, workers
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

// Check refuses a worker that is not registered, or not at all of the addresses at which it is to
// be sent KV. A record that is about to be seen is waited for, for a second at most. Its error
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
	record := d.workers[id]
	if gone := d.departed[id]; record == nil && time.Now().Before(gone.until) {
		record = gone.record
	}
	if record == nil {
		return d.changed, fmt.Errorf("worker %q is %w", shown(id), ErrUnregistered)
	}
	for _, address := range kvAddresses {
		if !receivesAt(record, address) {
			return d.changed, fmt.Errorf("worker %q is %w at %s", shown(id), ErrUnregistered, shown(address))
		}
	}
	return nil, nil
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
