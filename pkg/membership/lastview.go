package membership

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	// firstTry is how long etcd may take to answer before a last view is looked for.
	firstTry = time.Second
	// peersWait is how long other routers may take to answer.
	peersWait = 500 * time.Millisecond
	// saveLeast is the shortest time between two writes of the file, and saveEvery
	// the longest while etcd answers, so that its age is known.
	saveLeast = time.Second
	saveEvery = 30 * time.Second
	// policyWait bounds how long a view waits for the policy that goes with it.
	policyWait = time.Second
)

// Peers are the other routers; *signals.Conn reaches them.
type Peers interface {
	// AskViews returns the last views of those who answer until ctx ends.
	AskViews(ctx context.Context) []*controlv1.MembershipView
	// AnswerViews answers those who ask, nil with silence, until the function that
	// it returns is called.
	AnswerViews(view func() *controlv1.MembershipView) (func(), error)
}

// LastViewConfig says where a last view is kept and found.
type LastViewConfig struct {
	// Router is the id of this router.
	Router string
	// StateDir is the folder for File as people name it, or StateAuto or StateOff; only
	// Folder looks at it.
	StateDir string
	// File keeps the view; empty: none does.
	File string
	// Peers are asked and answered; nil: nobody is.
	Peers Peers
}

// LastView is a Client that knows the last view from before its own start: of a file,
// or of another router. While etcd has not answered yet, its watches begin with that.
// It is old: workers may have come and gone since, and whoever uses it has to make sure
// who answers at an address. Nothing follows from a worker that is not in it.
//
// Methods are safe for concurrent use; Watch and WatchPolicy are called once each.
type LastView struct {
	client *Client
	cfg    LastViewConfig
	log    *slog.Logger

	recall   sync.Mutex    // held while a last view is looked for
	recalled chan struct{} // closed once there is one
	told     chan struct{} // closed once the first policy was told
	tell     func()        // closes told
	changed  chan struct{} // holds one token when the file is behind

	mu     sync.Mutex
	view   View              // Source is not SourceEtcd: as it was recalled
	policy *controlv1.Policy // nil: not known
}

// NewLastView adds a last view to a client, which the caller closes.
func NewLastView(client *Client, cfg LastViewConfig, log *slog.Logger) *LastView {
	l := &LastView{
		client: client, cfg: cfg, log: log,
		recalled: make(chan struct{}), told: make(chan struct{}), changed: make(chan struct{}, 1),
	}
	l.tell = sync.OnceFunc(func() { close(l.told) })
	return l
}

// Await waits until etcd answers, or, if it does not at once, there is a last view.
// The error says that ctx has ended, and what was tried.
func (l *LastView) Await(ctx context.Context) error {
	for said := false; ; {
		first, cancel := context.WithTimeout(ctx, firstTry)
		err := l.client.Await(first)
		cancel()
		if err == nil || l.find(ctx) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w; there is no last view to start from: %s", err, l.missing())
		}
		if !said {
			said = true
			l.log.Warn("there is no last view to start from either: trying again", slog.String("missing", l.missing()))
		}
	}
}

// missing says where a last view was looked for in vain.
func (l *LastView) missing() string {
	if l.cfg.File == "" {
		return "this router keeps no file, and no other router answers over NATS"
	}
	return "none is in " + l.cfg.File + ", and no other router answers over NATS"
}

// Old is how old the last view is that is in use since etcd has not answered yet; false: none is.
func (l *LastView) Old() (age time.Duration, old bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.view.Source == SourceEtcd {
		return 0, false
	}
	return time.Since(l.view.AsOf), true
}

// find looks for a last view, once there is none yet, and says whether there is one.
func (l *LastView) find(ctx context.Context) bool {
	l.recall.Lock()
	defer l.recall.Unlock()
	select {
	case <-l.recalled:
		return true
	default:
	}
	best, from, ok := l.newest(ctx)
	if !ok {
		return false
	}
	l.mu.Lock()
	l.view = best.view
	if l.policy == nil {
		l.policy = best.policy
	}
	l.mu.Unlock()
	l.log.Warn("etcd does not answer: starting from an old view until it does; it lacks newer workers, and its workers are used once they answer",
		slog.String("source", string(best.view.Source)), slog.String("from", from), slog.Int("workers", len(best.view.Workers)),
		slog.Duration("age", time.Since(best.view.AsOf).Round(time.Millisecond)), slog.Bool("policy", best.policy != nil))
	close(l.recalled)
	return true
}

// candidate is a last view that was found.
type candidate struct {
	view   View
	policy *controlv1.Policy
}

// newest is the best of what the file and the other routers have: a view that a router
// has from etcd now, or else the youngest. Ages are each of one machine's clock.
func (l *LastView) newest(ctx context.Context) (best candidate, from string, ok bool) {
	now := time.Now()
	bestAge := time.Duration(0)
	consider := func(saved *controlv1.MembershipView, source Source, name string, age time.Duration) {
		if saved.GetLive() {
			age = 0
		}
		workers := goodRecords(saved.GetWorkers())
		if len(workers) == 0 || age < 0 || ok && age >= bestAge {
			return
		}
		policy := saved.GetPolicy()
		if proto.Size(policy) > maxValueBytes {
			policy = nil
		}
		best = candidate{View{Workers: workers, AsOf: now.Add(-age), Source: source}, policy}
		from, bestAge, ok = name, age, true
	}
	if l.cfg.Peers != nil {
		ctx, cancel := context.WithTimeout(ctx, peersWait)
		defer cancel()
		for _, saved := range l.cfg.Peers.AskViews(ctx) {
			consider(saved, SourcePeer, shown(saved.GetRouter()), saved.GetAge().AsDuration())
		}
	}
	if l.cfg.File != "" {
		saved, err := readViewFile(l.cfg.File)
		switch {
		case err == nil:
			consider(saved, SourceFile, l.cfg.File, max(now.Sub(saved.GetAsOf().AsTime()), 0))
		case !errors.Is(err, fs.ErrNotExist):
			l.log.Warn("cannot use the last view on disk: continuing without it", slog.String("file", l.cfg.File), slog.Any("error", err))
		}
	}
	return best, from, ok
}

// goodRecords is those of records that could stand in etcd, each key once, at most
// MaxWorkers.
func goodRecords(records []*controlv1.WorkerRecord) []*controlv1.WorkerRecord {
	r := newRoster(slog.New(slog.DiscardHandler))
	for _, record := range records {
		key := WorkerKey(record.GetRole(), record.GetId())
		if _, doubled := r.known[key]; doubled || checkRecord(record) != nil || r.workers == MaxWorkers {
			continue
		}
		r.known[key] = known{record: record}
		r.workers++
	}
	return r.view()
}

// Watch is Client.Watch, but that it begins with the last view while etcd has not
// answered yet. It also keeps the file, and answers other routers.
func (l *LastView) Watch(ctx context.Context, notify func(View)) error {
	var saver sync.WaitGroup
	defer saver.Wait()
	if l.cfg.File != "" {
		saver.Go(func() { l.keepFile(ctx) })
	}
	if l.cfg.Peers != nil {
		stop, err := l.cfg.Peers.AnswerViews(l.answer)
		if err != nil {
			l.log.Warn("other routers cannot get the last view from this one", slog.Any("error", err))
		} else {
			defer stop()
		}
	}
	select {
	case <-l.recalled:
		l.begin(ctx, notify)
	default:
	}
	return l.client.Watch(ctx, func(v View) {
		if v.AsOf.IsZero() { // etcd has not answered yet
			select {
			case <-l.recalled: // and that was told
			default:
				if l.find(ctx) {
					l.begin(ctx, notify)
				} else {
					notify(v)
				}
			}
			return
		}
		l.mu.Lock()
		l.view = v
		l.mu.Unlock()
		l.behind()
		notify(v)
	})
}

// begin tells of the last view, after the policy that goes with it.
func (l *LastView) begin(ctx context.Context, notify func(View)) {
	wait := time.NewTimer(policyWait)
	defer wait.Stop()
	select {
	case <-l.told:
	case <-wait.C:
	case <-ctx.Done():
	}
	l.mu.Lock()
	v := l.view
	l.mu.Unlock()
	notify(v)
}

// WatchPolicy is Client.WatchPolicy, but that it begins with the last policy, if that
// is known, with revision 0, while etcd has not answered yet.
func (l *LastView) WatchPolicy(ctx context.Context, notify func(policy *controlv1.Policy, revision int64)) error {
	type revised struct {
		policy   *controlv1.Policy
		revision int64
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	policies, ended := make(chan revised), make(chan error, 1)
	go func() {
		ended <- l.client.WatchPolicy(ctx, func(policy *controlv1.Policy, revision int64) {
			select {
			case policies <- revised{policy, revision}:
			case <-ctx.Done():
			}
		})
	}()
	recalled := l.recalled
	for {
		select {
		case err := <-ended:
			return err
		case now := <-policies:
			recalled = nil // etcd has answered
			l.mu.Lock()
			l.policy = proto.CloneOf(now.policy)
			l.mu.Unlock()
			l.behind()
			notify(now.policy, now.revision)
		case <-recalled:
			recalled = nil
			l.mu.Lock()
			policy := proto.CloneOf(l.policy)
			l.mu.Unlock()
			if policy != nil {
				notify(policy, 0)
			}
		}
		l.tell()
	}
}

// SetPolicy is Client.SetPolicy: it takes etcd.
func (l *LastView) SetPolicy(ctx context.Context, policy *controlv1.Policy, ifRevision int64) (revision int64, err error) {
	return l.client.SetPolicy(ctx, policy, ifRevision)
}

// answer is what another router is told; nil: nothing is known.
func (l *LastView) answer() *controlv1.MembershipView {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.view.Workers) == 0 || l.view.AsOf.IsZero() {
		return nil
	}
	answer := &controlv1.MembershipView{Router: l.cfg.Router, Workers: l.view.Workers, Policy: l.policy, Live: l.view.Live}
	if !l.view.Live {
		answer.Age = durationpb.New(max(time.Since(l.view.AsOf), 0))
	}
	return answer
}

// behind has the file written soon.
func (l *LastView) behind() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// keepFile writes the file, until ctx ends and then once more.
func (l *LastView) keepFile(ctx context.Context) {
	failing := false
	save := func() {
		view := l.worthSaving()
		if view == nil {
			return
		}
		switch err := writeViewFile(l.cfg.File, view); {
		case err != nil && !failing:
			failing = true
			l.log.Warn("cannot keep the last view on disk: if this router starts while etcd is away, it needs another router's view",
				slog.String("file", l.cfg.File), slog.Any("error", err))
		case err == nil && failing:
			failing = false
			l.log.Info("keeping the last view on disk again", slog.String("file", l.cfg.File))
		}
	}
	due := time.NewTicker(saveEvery)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			save()
			return
		case <-due.C:
		case <-l.changed:
			pause := time.NewTimer(saveLeast) // what else changes in it
			select {
			case <-pause.C:
			case <-ctx.Done():
				pause.Stop()
				save()
				return
			}
		}
		save()
	}
}

// worthSaving is what to write: what etcd said, once the policy is known too. A mesh
// without workers is nothing to start from: the view before stays.
func (l *LastView) worthSaving() *controlv1.MembershipView {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.view.Source != SourceEtcd || l.policy == nil || len(l.view.Workers) == 0 {
		return nil
	}
	asOf := l.view.AsOf
	if l.view.Live {
		asOf = time.Now()
	}
	return &controlv1.MembershipView{Router: l.cfg.Router, Workers: l.view.Workers, Policy: l.policy, AsOf: timestamppb.New(asOf)}
}
