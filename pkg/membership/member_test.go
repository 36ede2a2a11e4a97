package membership_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"pgregory.net/rapid"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// place is a worker that is nothing but its place in the membership, and etcd, which
// counts the records that are there.
type place struct {
	mu      sync.Mutex
	busy    bool
	refuses bool
	changed chan struct{}
	records int
	state   controlv1.WorkerState
	cut     int
	slow    time.Duration // that removing a record takes
}

func (p *place) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *place) idle(ctx context.Context) error {
	for {
		p.mu.Lock()
		busy, changed := p.busy, p.changed
		p.mu.Unlock()
		if !busy {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *place) Update(change func(*controlv1.WorkerRecord)) {
	record := &controlv1.WorkerRecord{}
	change(record)
	p.set(func() { p.state = record.GetState() })
}

func (p *place) Close(context.Context) error {
	time.Sleep(p.slow)
	p.set(func() { p.records-- })
	return nil
}

func (p *place) progress() (*workerv1.DrainProgress, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	progress := &workerv1.DrainProgress{}
	if p.busy {
		progress.Sequences = 1
	}
	return progress, p.changed
}

func (p *place) member() *membership.Member {
	return membership.NewMember(membership.MemberConfig{
		Identity: membership.Identity{ID: "w1"}, Describe: func(*controlv1.WorkerRecord) {},
		Refuse: func(refuse bool) { p.set(func() { p.refuses = refuse }) },
		Idle:   p.idle, Progress: p.progress, Cut: func() { p.set(func() { p.cut++; p.busy = false }) }, Logger: slog.New(slog.DiscardHandler),
	})
}

// Whatever drains and undrains come, at whatever times, there is one record at most;
// after the last of them, and some time, the worker is either there, takes requests and
// says so, or takes none and is gone once it is idle.
func TestMemberLeavesAndComesBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.SampledFrom([]string{"leave", "cut", "undrain", "undrain", "busy", "idle", "wait", "short", "short"}), 1, 30).Draw(rt, "steps")
		slow := time.Duration(rapid.SampledFrom([]int{0, 1, 300, 1500}).Draw(rt, "removing takes ms")) * time.Millisecond
		times := rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, 100, 999, 1000, 1001, 1300}), len(steps), len(steps)).Draw(rt, "ms")
		synctest.Test(t, func(t *testing.T) {
			p := &place{changed: make(chan struct{}), slow: slow}
			m := p.member()
			ctx, stop := context.WithCancel(context.Background())
			var wait sync.WaitGroup
			wait.Go(func() { m.Run(ctx) })
			m.Join(func(record *controlv1.WorkerRecord) membership.Announcement {
				p.set(func() {
					if p.records++; p.records > 1 {
						rt.Errorf("%d records", p.records)
					}
					p.state = record.GetState()
				})
				return p
			})
			drains := false
			for i, step := range steps {
				switch step {
				case "leave", "cut":
					grace := time.Duration(0)
					if step == "cut" {
						grace = time.Second
					}
					m.Leave(grace)
					drains = true
				case "undrain":
					if err := m.Undrain(ctx); err != nil {
						rt.Error(err)
					}
					drains = false
				case "busy":
					p.set(func() { p.busy = p.busy || !p.refuses })
				case "idle":
					p.set(func() { p.busy = false })
				case "wait":
					time.Sleep(10 * time.Second)
				}
				time.Sleep(time.Duration(times[i]) * time.Millisecond)
			}
			time.Sleep(10 * time.Second)
			p.mu.Lock()
			busy, refuses, records, state := p.busy, p.refuses, p.records, p.state
			p.mu.Unlock()
			switch {
			case refuses != drains:
				rt.Errorf("refuses %v, drains %v", refuses, drains)
			case drains && !busy && records != 0:
				rt.Error("drained, and its record is there")
			case (!drains || busy) && records != 1:
				rt.Errorf("%d records", records)
			case !drains && state != controlv1.WorkerState_WORKER_STATE_SERVING, drains && busy && state != controlv1.WorkerState_WORKER_STATE_DRAINING:
				rt.Errorf("drains %v, and says %v", drains, state)
			}
			end, cancel := context.WithTimeout(ctx, time.Second)
			m.Drain(end, time.Second)
			cancel()
			if p.records != 0 {
				rt.Errorf("%d records in the end", p.records)
			}
			stop()
			wait.Wait()
		})
	})
}

// registrar takes the Worker service of a member.
type registrar struct{ worker workerv1.WorkerServer }

func (r *registrar) RegisterService(_ *grpc.ServiceDesc, implementation any) {
	r.worker = implementation.(workerv1.WorkerServer)
}

// drainStream is a call of Drain.
type drainStream struct {
	grpc.ServerStreamingServer[workerv1.DrainProgress]
	ctx context.Context
}

func (s drainStream) Context() context.Context         { return s.ctx }
func (drainStream) Send(*workerv1.DrainProgress) error { return nil }

// A drain that is taken back does not end as if the worker had drained.
func TestUndrainEndsADrainThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &place{changed: make(chan struct{}), busy: true}
		m := p.member()
		var server registrar
		m.Register(&server)
		ended := make(chan error, 1)
		go func() { ended <- server.worker.Drain(&workerv1.DrainRequest{}, drainStream{ctx: t.Context()}) }()
		synctest.Wait()
		if err := m.Undrain(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		p.set(func() { p.busy = false }) // for an instant, as a worker that serves may be
		if err := <-ended; rpc.Reason(err) != api.ReasonDrainUndone {
			t.Errorf("it ends with %v", err)
		}
	})
}
