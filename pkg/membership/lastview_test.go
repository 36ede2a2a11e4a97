package membership_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tandem-serving/tandem/pkg/membership"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// peers are other routers without NATS.
type peers struct {
	answers []*controlv1.MembershipView
	asked   int
	ask     func() *controlv1.MembershipView // what this router answers
}

func (p *peers) AskViews(ctx context.Context) []*controlv1.MembershipView {
	p.asked++
	<-ctx.Done() // as when nobody is live
	return p.answers
}

func (p *peers) AnswerViews(view func() *controlv1.MembershipView) (func(), error) {
	p.ask = view
	return func() { p.ask = nil }, nil
}

// router is what a router sees of a LastView.
type router struct {
	*membership.LastView
	b        *bubble
	client   *membership.Client
	said     []string // in order
	view     membership.View
	policies []*controlv1.Policy
	stop     func()
}

// router makes one, which does not watch yet.
func (b *bubble) router(cfg membership.LastViewConfig) *router {
	r := &router{b: b, client: b.another()}
	r.LastView = membership.NewLastView(r.client, cfg, b.logger)
	return r
}

// run watches until stop, or until the test ends.
func (r *router) run() *router {
	ctx, cancel := context.WithCancel(r.b.t.Context())
	ended := make(chan error, 2)
	lines := make(chan func(), 1024)
	go func() {
		ended <- r.Watch(ctx, func(v membership.View) {
			lines <- func() {
				r.view, r.said = v, append(r.said, fmt.Sprintf("%s%d live=%v", v.Source, len(v.Workers), v.Live))
			}
		})
	}()
	go func() {
		ended <- r.WatchPolicy(ctx, func(p *controlv1.Policy, _ int64) {
			lines <- func() {
				r.policies, r.said = append(r.policies, p), append(r.said, fmt.Sprintf("policy %d", p.GetTenantMaxRequests()))
			}
		})
	}()
	go func() {
		for line := range lines {
			line()
		}
	}()
	r.stop = func() {
		cancel()
		for range 2 {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				r.b.t.Errorf("ended with %v", err)
			}
		}
		close(lines)
		if err := r.client.Close(); err != nil {
			r.b.t.Error(err)
		}
		r.stop = func() {}
	}
	return r
}

// A router that starts while etcd is away begins with what the one before it had
// written, policy first; the live view takes over once etcd answers.
func TestLastViewFromAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state", "view")
	inBubble(t, func(t *testing.T, b *bubble) {
		b.set(record("a", 1))
		b.set(record("b", 2))
		if _, err := b.client.SetPolicy(t.Context(), &controlv1.Policy{TenantMaxRequests: proto.Uint32(7)}, membership.AnyRevision); err != nil {
			t.Fatal(err)
		}
		first := b.router(membership.LastViewConfig{File: file})
		if err := first.Await(t.Context()); err != nil {
			t.Fatal(err)
		}
		first.run()
		b.pass(10 * time.Second)
		if len(first.view.Workers) != 2 || !first.view.Live || first.view.Source != membership.SourceEtcd {
			t.Fatalf("the first router has %+v", first.view)
		}
		b.store.Down()
		b.pass(time.Minute)
		first.stop()
		b.pass(time.Hour)

		second := b.router(membership.LastViewConfig{File: file})
		began := time.Now()
		if err := second.Await(t.Context()); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited > 3*time.Second {
			t.Errorf("it waited %s in vain", waited)
		}
		second.run()
		b.pass(time.Second)
		if got := strings.Join(second.said, ", "); got != "policy 7, file2 live=false" {
			t.Errorf("it began with %s", got)
		}
		if age := time.Since(second.view.AsOf); age < time.Hour || age > time.Hour+2*time.Minute {
			t.Errorf("the view is %s old", age)
		}
		b.pass(time.Minute)
		if len(second.said) != 2 {
			t.Errorf("and then %v", second.said)
		}
		b.store.DeleteNow(keyA)
		b.store.Up()
		b.pass(5 * time.Second)
		if len(second.view.Workers) != 1 || !second.view.Live || second.view.Source != membership.SourceEtcd {
			t.Errorf("once etcd is back it has %+v", second.view)
		}
		second.stop()
		if saved, err := membership.ReadViewFile(file); err != nil || len(saved.GetWorkers()) != 1 {
			t.Errorf("it kept %v, %v", saved, err)
		}
	})
}

// The best of several last views is chosen, each by an age of its own machine's clock.
func TestLastViewIsTheNewest(t *testing.T) {
	told := func(epoch uint64, age time.Duration, live bool, change ...func(*controlv1.MembershipView)) *controlv1.MembershipView {
		view := &controlv1.MembershipView{Router: "other", Live: live, Age: durationpb.New(age), Workers: []*controlv1.WorkerRecord{record("a", epoch)}}
		for _, c := range change {
			c(view)
		}
		return view
	}
	for _, test := range []struct {
		name    string
		file    time.Duration // age of the view in the file, of epoch 1; 0: there is none
		answers []*controlv1.MembershipView
		want    uint64 // epoch; 0: nothing is found
		source  membership.Source
	}{
		{"nothing", 0, nil, 0, ""},
		{"a file", time.Hour, nil, 1, membership.SourceFile},
		{"a file of another time", -time.Hour, nil, 1, membership.SourceFile},
		{"a peer", 0, []*controlv1.MembershipView{told(2, time.Hour, false)}, 2, membership.SourcePeer},
		{"a younger peer", time.Hour, []*controlv1.MembershipView{told(2, time.Minute, false)}, 2, membership.SourcePeer},
		{"an older peer", time.Minute, []*controlv1.MembershipView{told(2, time.Hour, false)}, 1, membership.SourceFile},
		{"the youngest peer", 0, []*controlv1.MembershipView{told(2, time.Hour, false), told(3, time.Minute, false), told(4, time.Hour, false)}, 3, membership.SourcePeer},
		{"a live peer", time.Second, []*controlv1.MembershipView{told(2, time.Minute, false), told(3, time.Hour, true)}, 3, membership.SourcePeer},
		{"a peer that knows nobody", time.Hour, []*controlv1.MembershipView{{Router: "other", Live: true}}, 1, membership.SourceFile},
		{"a peer of the future", time.Hour, []*controlv1.MembershipView{told(2, -time.Hour, false)}, 1, membership.SourceFile},
		{"a peer with records that are none", time.Hour, []*controlv1.MembershipView{told(2, 0, true, func(v *controlv1.MembershipView) {
			v.Workers[0].Addresses = make([]string, 17)
			v.Workers = append(v.Workers, &controlv1.WorkerRecord{Id: "b", Role: 77}, &controlv1.WorkerRecord{}, nil)
		})}, 1, membership.SourceFile},
		{"a peer with one good record, twice", 0, []*controlv1.MembershipView{told(2, 0, true, func(v *controlv1.MembershipView) {
			v.Workers = append(v.Workers, record("a", 9), nil, &controlv1.WorkerRecord{Id: strings.Repeat("x", 300), Role: controlv1.Role_ROLE_DECODE})
		})}, 2, membership.SourcePeer},
	} {
		t.Run(test.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "view")
			inBubble(t, func(t *testing.T, b *bubble) {
				if test.file != 0 {
					saved := &controlv1.MembershipView{Workers: []*controlv1.WorkerRecord{record("a", 1)}, AsOf: timestamppb.New(time.Now().Add(-test.file))}
					if err := membership.WriteViewFile(file, saved); err != nil {
						t.Fatal(err)
					}
				}
				b.store.Down()
				r := b.router(membership.LastViewConfig{File: file, Peers: &peers{answers: test.answers}})
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				err := r.Await(ctx)
				if test.want == 0 {
					if err == nil || !strings.Contains(err.Error(), "no last view to start from: none is in "+file) || strings.Contains(err.Error(), "\n") {
						t.Errorf("error %v", err)
					}
					if got := strings.Count(b.log.String(), "no last view"); got != 1 {
						t.Errorf("said %d times", got)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if _, old := r.Old(); !old {
					t.Error("it does not say that its view is old")
				}
				r.run()
				b.pass(3 * time.Second)
				if len(r.view.Workers) != 1 || r.view.Workers[0].GetEpoch() != test.want || r.view.Source != test.source || r.view.Live {
					t.Errorf("it begins with %+v", r.view)
				}
				r.stop()
			})
		})
	}
}

// What is answered to others is what is known, with its age.
func TestLastViewIsTold(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := &peers{}
		r := b.router(membership.LastViewConfig{Router: "router-1", Peers: p})
		r.run()
		b.pass(time.Second)
		if got := p.ask(); got != nil {
			t.Errorf("of a mesh without workers it tells %v", got)
		}
		b.set(record("a", 1))
		b.pass(time.Second)
		if got := p.ask(); !got.GetLive() || got.GetRouter() != "router-1" || len(got.GetWorkers()) != 1 || got.GetPolicy() == nil || got.GetAge() != nil {
			t.Errorf("while etcd answers it tells %v", got)
		}
		b.store.Down()
		b.pass(time.Minute)
		if got := p.ask(); got.GetLive() || len(got.GetWorkers()) != 1 || got.GetAge().AsDuration() < 50*time.Second || got.GetAge().AsDuration() > 70*time.Second {
			t.Errorf("after a minute without etcd it tells %v", got)
		}
		r.stop()
		if p.ask != nil {
			t.Error("it answers after its end")
		}
	})
}

// etcd that answers at first and is gone before the first listing is away as well.
func TestLastViewIsFoundLater(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := &peers{}
		r := b.router(membership.LastViewConfig{Peers: p})
		if _, old := r.Old(); old {
			t.Error("it takes no view for an old one")
		}
		if err := r.Await(t.Context()); err != nil || p.asked != 0 {
			t.Fatalf("%v, asked %d times", err, p.asked)
		}
		b.store.Down()
		p.answers = []*controlv1.MembershipView{{Live: true, Workers: []*controlv1.WorkerRecord{record("a", 1)}, Policy: &controlv1.Policy{TenantMaxRequests: proto.Uint32(5)}}}
		r.run()
		b.pass(10 * time.Second)
		if got := strings.Join(r.said, ", "); got != "policy 5, peer1 live=false" {
			t.Errorf("it began with %s", got)
		}
		b.store.Up()
		b.pass(5 * time.Second)
		if !r.view.Live || len(r.view.Workers) != 0 {
			t.Errorf("once etcd is back it has %+v", r.view)
		}
		r.stop()
	})
}

// The file is written seldom, kept when there is nothing to say, and done without.
func TestLastViewFileIsBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "view")
	inBubble(t, func(t *testing.T, b *bubble) {
		r := b.router(membership.LastViewConfig{File: file}).run()
		written := make(map[string]bool)
		for i := range 1000 {
			b.set(record("a", uint64(i+1)))
			b.pass(10 * time.Millisecond)
			if data, err := os.ReadFile(file); err == nil {
				written[string(data)] = true
			}
		}
		if len(written) == 0 || len(written) > 11 {
			t.Errorf("written %d times in ten seconds", len(written))
		}
		b.pass(5 * time.Second)
		saved := func() *controlv1.MembershipView {
			t.Helper()
			view, err := membership.ReadViewFile(file)
			if err != nil {
				t.Fatal(err)
			}
			return view
		}
		if got := saved(); got.GetWorkers()[0].GetEpoch() != 1000 {
			t.Errorf("the last change is not in it: %v", got)
		}
		before := saved().GetAsOf().AsTime()
		b.pass(time.Minute)
		if since := saved().GetAsOf().AsTime().Sub(before); since < 30*time.Second {
			t.Errorf("its age is not kept: %s", since)
		}
		b.store.DeleteNow(keyA)
		b.pass(time.Minute)
		r.stop()
		if got := saved(); len(got.GetWorkers()) != 1 {
			t.Errorf("an empty mesh took the view away: %v", got)
		}
	})
}

func TestLastViewWithoutADisk(t *testing.T) {
	taken := filepath.Join(t.TempDir(), "taken")
	if err := os.WriteFile(taken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	inBubble(t, func(t *testing.T, b *bubble) {
		b.set(record("a", 1))
		r := b.router(membership.LastViewConfig{File: filepath.Join(taken, "view")}).run()
		b.pass(10 * time.Minute)
		if len(r.view.Workers) != 1 {
			t.Errorf("it has %+v", r.view)
		}
		r.stop()
		if got := strings.Count(b.log.String(), "cannot keep the last view on disk"); got != 1 {
			t.Errorf("said %d times:\n%s", got, b.log.String())
		}
		synctest.Wait()
	})
}

func TestLastViewThatIsDamaged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "view")
	if err := os.WriteFile(file, []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	inBubble(t, func(t *testing.T, b *bubble) {
		b.store.Down()
		r := b.router(membership.LastViewConfig{File: file, Peers: &peers{answers: []*controlv1.MembershipView{{Workers: []*controlv1.WorkerRecord{record("a", 3)}}}}})
		if err := r.Await(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.log.String(), "cannot use the last view") {
			t.Errorf("nobody is told:\n%s", b.log.String())
		}
		r.run()
		b.pass(time.Second)
		if len(r.view.Workers) != 1 || r.view.Source != membership.SourcePeer {
			t.Errorf("it has %+v", r.view)
		}
		r.stop()
	})
}
