package membership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	"google.golang.org/protobuf/proto"
)

// View is all workers that etcd lists.
type View struct {
	// Workers, sorted by role and id, at most MaxWorkers. They are shared: do not
	// change them.
	Workers []*controlv1.WorkerRecord
	// Live says that etcd answers. If it does not, Workers is the last view known
	// and a worker may have come or gone since.
	Live bool
	// AsOf is when etcd last answered, by this machine's clock; zero: never yet.
	AsOf time.Time
	// Source says who saw the view in etcd.
	Source Source
}

// Source is who saw a view in etcd.
type Source string

// Sources.
const (
	// SourceEtcd: this process.
	SourceEtcd Source = ""
	// SourceFile: an earlier process, which kept it in a file.
	SourceFile Source = "file"
	// SourcePeer: another router, which was asked.
	SourcePeer Source = "peer"
)

// Watch calls notify with the view as soon as it is known, and again whenever it
// changes or etcd goes away or comes back. Until etcd first answers there is one
// call with an empty view that is not live. notify runs in the caller's goroutine
// and must not block for long. Watch returns ctx's error when ctx ends, and never
// before. A record that does not parse is left out and logged once.
func (c *Client) Watch(ctx context.Context, notify func(View)) error {
	r := newRoster(c.log)
	return c.follow(ctx, workersPrefix, follower{
		reset:  r.reset,
		apply:  r.apply,
		stale:  r.stale,
		notify: func(live bool, asOf time.Time) { notify(View{Workers: r.view(), Live: live, AsOf: asOf}) },
	})
}

// WatchPolicy calls notify with the policy, an empty one with revision 0 if none is
// set, as soon as it is known and whenever it is set. While etcd is away the last one stands.
// notify runs in the caller's goroutine. A policy that does not parse is logged
// and the one before it stands. WatchPolicy returns ctx's error when ctx ends,
// and never before.
func (c *Client) WatchPolicy(ctx context.Context, notify func(policy *controlv1.Policy, revision int64)) error {
	current, revision := &controlv1.Policy{}, int64(0)
	var said *controlv1.Policy
	var saidRevision int64
	return c.follow(ctx, policyKey, follower{
		reset: func() { current, revision = &controlv1.Policy{}, 0 },
		apply: func(event Event) {
			if event.Key != policyKey {
				return
			}
			next := &controlv1.Policy{}
			revision = 0
			if !event.Removed {
				revision = event.Revision
				if err := readValue(event.Value, next); err != nil {
					c.log.Warn("policy in etcd is malformed: keeping the previous one", slog.Any("error", err))
					if said != nil {
						next = said
					}
				}
			}
			current = next
		},
		notify: func(_ bool, asOf time.Time) {
			if asOf.IsZero() || said != nil && saidRevision == revision && proto.Equal(said, current) {
				return
			}
			said, saidRevision = current, revision
			notify(proto.CloneOf(current), revision)
		},
	})
}

// follower is told of the keys under a prefix. reset comes before a whole new
// listing; notify after each listing, each change of liveness, and soon after events.
// stale, which may be nil, says that a new listing would show more.
type follower struct {
	reset  func()
	apply  func(Event)
	stale  func() bool
	notify func(live bool, asOf time.Time)
}

// following is the state of one follow.
type following struct {
	follower
	client   *Client
	prefix   string
	keys     map[string]int64 // the revisions at which they were written
	added    int              // bytes of keys that were added since the last listing
	revision int64            // up to which everything is applied
	live     bool
	asOf     time.Time // when etcd last answered
	told     time.Time // when notify was last called; zero: never
	doubts   int       // looks in a row that did not agree
}

// follow lists, then watches, and lists again whenever the watch cannot be
// relied on, until ctx ends.
//
// A watch alone is not enough: the etcd client resumes it silently when etcd was
// away, and waits for ever for revisions of a store that was restored to an
// earlier state. So etcd is asked from time to time, which also shows whether it
// answers.
func (c *Client) follow(ctx context.Context, prefix string, f follower) error {
	s := &following{follower: f, client: c, prefix: prefix}
	for {
		err := s.list(ctx)
		if err == nil {
			err = s.watch(ctx)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.absent(err)
		if !sleep(ctx, c.cfg.RetryWait) {
			return ctx.Err()
		}
	}
}

// list takes a whole new listing.
func (s *following) list(ctx context.Context) error {
	listing, err := answer(ctx, s.client, s.client.store.List, s.prefix)
	if err != nil {
		return err
	}
	s.reset()
	s.keys = make(map[string]int64, len(listing.Entries))
	slices.SortFunc(listing.Entries, func(a, b Entry) int { return cmp.Compare(a.Created, b.Created) })
	for _, entry := range listing.Entries {
		s.keys[entry.Key] = entry.Revision
		s.apply(Event{Entry: entry})
	}
	s.revision, s.doubts, s.added = listing.Revision, 0, 0
	if !s.told.IsZero() && !s.live {
		s.client.log.Info("etcd answers again", slog.String("prefix", s.prefix))
	}
	s.asOf = time.Now()
	s.tell(true)
	return nil
}

// tell says what is known.
func (s *following) tell(live bool) {
	s.live, s.told = live, time.Now()
	s.notify(live, s.asOf)
}

// absent says that etcd does not answer, once. A watch that only has to be made
// anew is no absence.
func (s *following) absent(err error) {
	if errors.Is(err, errListAgain) || !s.told.IsZero() && !s.live {
		return
	}
	if !errors.Is(err, errAbandoned) {
		s.client.log.Warn("etcd does not answer: keeping the last view until it does", slog.String("prefix", s.prefix), slog.Any("error", err))
	}
	s.tell(false)
}

// errListAgain says that the watch has come to its end and etcd is there.
var errListAgain = errors.New("list again")

// watch follows events until it cannot be relied on; it returns why.
func (s *following) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	batches := s.client.store.Watch(ctx, s.prefix, s.revision)
	defer func() {
		cancel()
		for range batches { // its goroutine ends before the next one starts
		}
	}()
	probe := time.NewTicker(s.client.cfg.ProbeInterval)
	defer probe.Stop()
	var due <-chan time.Time // when to tell of events
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-due:
			due = nil
			s.tell(true)
		case batch, ok := <-batches:
			if !ok {
				return errListAgain
			}
			if batch.Err != nil {
				// Compacted, or no leader: the next list shows whether etcd answers.
				s.client.log.Debug("watch ended: listing again", slog.String("prefix", s.prefix), slog.Any("error", batch.Err))
				return errListAgain
			}
			s.take(batch)
			if len(s.keys) > maxKeys || s.added > maxListedBytes {
				return errListAgain // which says what is wrong
			}
			wait := notifyLeast - time.Since(s.told)
			switch {
			case len(batch.Events) == 0 || due != nil:
			case wait > 0:
				due = time.After(wait)
			default:
				s.tell(true)
			}
		case <-probe.C:
			if err := s.probe(ctx); err != nil {
				return err
			}
		}
	}
}

// take applies events.
func (s *following) take(batch Batch) {
	for _, event := range batch.Events {
		if event.Removed {
			delete(s.keys, event.Key)
		} else {
			if _, known := s.keys[event.Key]; !known {
				s.added += len(event.Key)
			}
			s.keys[event.Key] = event.Revision
		}
		s.apply(event)
		s.revision = max(s.revision, event.Revision)
	}
	s.revision, s.asOf = max(s.revision, batch.Revision), time.Now()
}

// probe asks etcd whether what is known is still so.
func (s *following) probe(ctx context.Context) error {
	summary, err := answer(ctx, s.client, s.client.store.Summary, s.prefix)
	if err != nil {
		return err
	}
	s.asOf = time.Now()
	if s.stale != nil && s.stale() {
		return fmt.Errorf("%w: workers that were left out fit now", errListAgain)
	}
	if summary.Revision < s.revision {
		return fmt.Errorf("%w: etcd is at revision %d, but was at %d", errListAgain, summary.Revision, s.revision)
	}
	var newest int64
	for _, revision := range s.keys {
		newest = max(newest, revision)
	}
	if summary.Count == len(s.keys) && summary.Newest == newest {
		s.doubts = 0
		return nil
	}
	// The events may be on their way, but not until the next probe.
	if s.doubts++; s.doubts < 2 {
		return nil
	}
	return fmt.Errorf("%w: the watch lags behind", errListAgain)
}
