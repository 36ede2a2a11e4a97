package quota_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/quota"
)

// mesh is routers that tell each other what they use, a few milliseconds late.
type mesh struct {
	ctx  context.Context
	deaf bool // nobody hears of another
	late sync.WaitGroup

	mu      sync.Mutex
	routers []*router
	epoch   uint64 // of the last one
}

type router struct {
	*quota.Limiter
	id    string
	epoch uint64
	end   context.CancelFunc
	mute  bool // nobody hears of it
}

// joined is how long it takes until routers have heard of each other; not as long as the time between
// two reports.
const joined = 2*time.Second + 10*time.Millisecond

// newMesh runs routers until the test ends.
func newMesh(t *testing.T, routers int) *mesh {
	ctx, cancel := context.WithCancel(t.Context())
	m := &mesh{ctx: ctx}
	t.Cleanup(func() {
		cancel()
		m.late.Wait()
	})
	for i := range routers {
		m.add(fmt.Sprintf("router-%d", i))
	}
	m.see()
	return m
}

// join has one more router, of which all know.
func (m *mesh) join(id string) *router {
	r := m.add(id)
	m.see()
	return r
}

// leave has the router end, of which all know.
func (m *mesh) leave(r *router) {
	r.end()
	m.mu.Lock()
	m.routers = slices.DeleteFunc(m.routers, func(other *router) bool { return other == r })
	m.mu.Unlock()
	m.see()
}

// see tells all routers who is there.
func (m *mesh) see() {
	m.mu.Lock()
	defer m.mu.Unlock()
	epochs := map[string]uint64{}
	for _, r := range m.routers {
		epochs[r.id] = r.epoch
	}
	for _, r := range m.routers {
		r.Routers(epochs)
	}
}

func (m *mesh) add(id string) *router {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.epoch++
	ctx, end := context.WithCancel(m.ctx)
	r := &router{quota.New(id, nil), id, m.epoch, end, false}
	m.routers = append(m.routers, r)
	sequence := uint64(0)
	m.late.Go(func() {
		r.Run(ctx, func(report *controlv1.TenantReport) {
			sequence++
			sent := proto.CloneOf(report)
			sent.Origin = &controlv1.Origin{Id: id, Epoch: r.epoch, Sequence: sequence}
			m.late.Go(func() { m.tell(r, sent) })
		})
	})
	return r
}

// unlist has the mesh not list a router any more, which goes on.
func (m *mesh) unlist(lost *router) {
	m.mu.Lock()
	defer m.mu.Unlock()
	epochs := map[string]uint64{}
	for _, r := range m.routers {
		if r != lost {
			epochs[r.id] = r.epoch
		}
	}
	for _, r := range m.routers {
		r.Routers(epochs)
	}
}

// silence has nobody hear of a router, or again.
func (m *mesh) silence(r *router, mute bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.mute = mute
}

// deafen has nobody hear of another from now on.
func (m *mesh) deafen() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deaf = true
}

// tell has all other routers hear of a report.
func (m *mesh) tell(from *router, report *controlv1.TenantReport) {
	<-time.After(3 * time.Millisecond)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.routers {
		if r != from && !m.deaf && !from.mute {
			r.Heard(report)
		}
	}
}

// hammer asks at all routers as often as it may for a while, and returns the admissions.
func (m *mesh) hammer(ctx context.Context, limits quota.Limits, each, tokens int64, forHowLong, runs time.Duration) []time.Time {
	var mu sync.Mutex
	var admitted []time.Time
	var wait sync.WaitGroup
	end := time.Now().Add(forHowLong)
	for i, l := range m.routers {
		for k := range each {
			wait.Go(func() {
				random := rand.New(rand.NewPCG(uint64(i), uint64(k)))
				for time.Now().Before(end) {
					charge, err := l.Admit(ctx, "acme", limits, tokens)
					if err == nil {
						mu.Lock()
						admitted = append(admitted, time.Now())
						mu.Unlock()
						<-time.After(runs)
						charge.Done(tokens)
					}
					<-time.After(time.Duration(random.IntN(50)) * time.Millisecond)
				}
			})
		}
	}
	wait.Wait()
	return admitted
}

// most is the most admissions in any minute.
func most(admitted []time.Time) (n int) {
	for i, from := range admitted {
		count := 0
		for _, at := range admitted[i:] {
			if at.Sub(from) < time.Minute {
				count++
			}
		}
		n = max(n, count)
	}
	return n
}

func TestOverSeveralRoutersTogether(t *testing.T) {
	for _, c := range []struct {
		routers, limit, tokens int64
	}{
		{1, 60, 100}, {2, 60, 100}, {4, 60, 100}, {4, 7, 100}, {3, 600, 100},
	} {
		for _, what := range []string{"requests", "tokens"} {
			t.Run(fmt.Sprintf("%d routers, %d requests, by %s", c.routers, c.limit, what), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := newMesh(t, int(c.routers))
					<-time.After(joined)
					limits := quota.Limits{RequestsPerMinute: c.limit}
					if what == "tokens" {
						limits = quota.Limits{TokensPerMinute: c.limit * c.tokens}
					}
					const minutes = 3
					admitted := m.hammer(t.Context(), limits, 8, c.tokens, minutes*time.Minute, time.Millisecond)
					if n := most(admitted); n > int(c.limit) {
						t.Errorf("%d in a minute, with a limit of %d", n, c.limit)
					}
					if n := len(admitted); float64(n) < .95*minutes*float64(c.limit) {
						t.Errorf("%d in %d minutes, with a limit of %d", n, minutes, c.limit)
					}
				})
			})
		}
	}
}

func TestConcurrencyOverSeveralRouters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 4)
		<-time.After(joined)
		const limit, runs = 40, time.Second
		admitted := m.hammer(t.Context(), quota.Limits{Concurrency: limit}, 30, 10, 20*time.Second, runs)
		for i, from := range admitted {
			n := 0
			for _, at := range admitted[i:] {
				if at.Sub(from) < runs {
					n++
				}
			}
			if n > limit {
				t.Fatalf("%d run at a time, with a limit of %d", n, limit)
			}
		}
		if n := len(admitted); n < limit*20*8/10 {
			t.Errorf("%d requests of a second ran in 20 s, with %d at a time", n, limit)
		}
	})
}

// A large request that takes most of what is left is admitted at no router while small ones use it
// up at the others.
func TestLargeAndSmallOverSeveralRouters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 4)
		<-time.After(joined)
		const limit = 1000
		var mu sync.Mutex
		used, large := int64(0), 0
		ask := func(r *router, tokens int64, random *rand.Rand) {
			for end := time.Now().Add(50 * time.Second); time.Now().Before(end); {
				if _, err := r.Admit(t.Context(), "acme", quota.Limits{TokensPerMinute: limit}, tokens); err == nil {
					mu.Lock()
					used += tokens
					if tokens > 100 {
						large++
					}
					mu.Unlock()
				}
				<-time.After(time.Duration(random.IntN(100)) * time.Millisecond)
			}
		}
		var wait sync.WaitGroup
		for i, r := range m.routers {
			wait.Go(func() { ask(r, 300, rand.New(rand.NewPCG(1, uint64(i)))) })
			for k := range 4 {
				wait.Go(func() { ask(r, 5, rand.New(rand.NewPCG(2, uint64(4*i+k)))) })
			}
		}
		wait.Wait()
		if used > limit || used < limit*9/10 || large == 0 {
			t.Errorf("%d tokens within a minute, with a limit of %d; %d large requests", used, limit, large)
		}
	})
}

// Each of many routers has its turn, also where there are fewer places than routers.
func TestEachOfManyRoutersHasItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 30)
		<-time.After(joined)
		for i, r := range m.routers {
			began := time.Now()
			charge, err := r.Admit(t.Context(), "acme", quota.Limits{Concurrency: 4}, 1)
			if err != nil || time.Since(began) > 2*time.Second {
				t.Errorf("router %d: %v after %v", i, err, time.Since(began))
			}
			charge.Done(1)
			<-time.After(1100 * time.Millisecond) // the others hear of it
		}
	})
}

// Without NATS each router serves its share.
func TestRoutersThatHearNothingServeTheirShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 4)
		m.deafen()
		admitted := m.hammer(t.Context(), quota.Limits{RequestsPerMinute: 60}, 4, 1, 59*time.Second, 0)
		if n := len(admitted); n != 60 {
			t.Errorf("%d, want 60", n)
		}
	})
}

// Where no router hears of another, all of them together serve a limit: as much as that and no less,
// however small it is.
func TestSharesAreTheLimit(t *testing.T) {
	for _, routers := range []int{2, 3, 8} {
		t.Run(fmt.Sprint(routers, " routers"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMesh(t, routers)
				m.deafen()
				<-time.After(4 * time.Second)
				for limit := int64(1); limit <= int64(routers*routers); limit++ {
					for what, limits := range map[string]quota.Limits{"requests": {RequestsPerMinute: limit}, "tokens": {TokensPerMinute: limit}, "concurrency": {Concurrency: limit}} {
						tenant, served, least, most := fmt.Sprint(what, limit), int64(0), limit, int64(0)
						for _, r := range m.routers {
							n := int64(0)
							for ; r.Over(tenant, limits, quota.Need{}) == nil; n++ {
								if _, err := r.Admit(t.Context(), tenant, limits, 1); err != nil {
									t.Fatalf("%d %s: not over, and %v", limit, what, err)
								}
							}
							served, least, most = served+n, min(least, n), max(most, n)
						}
						if served != limit || most > least+1 {
							t.Errorf("%d of %d %s, at each router %d to %d", served, limit, what, least, most)
						}
					}
				}
			})
		})
	}
}

// A burst at one of several routers is not refused while the tenant is within its limits.
func TestBurstAtOneRouter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 4)
		<-time.After(joined)
		var wait sync.WaitGroup
		for range 50 {
			wait.Go(func() {
				if _, err := m.routers[0].Admit(t.Context(), "acme", quota.Limits{RequestsPerMinute: 60}, 1); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
	})
}

// What was used before a router came is used up there, too.
func TestRouterThatJoinsLetsNothingMoreThrough(t *testing.T) {
	for _, what := range []string{"requests", "tokens"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMesh(t, 1)
				limits := quota.Limits{RequestsPerMinute: 60}
				if what == "tokens" {
					limits = quota.Limits{TokensPerMinute: 600}
				}
				admitted := m.hammer(t.Context(), limits, 8, 10, 5*time.Second, time.Millisecond)
				for _, id := range []string{"router-1", "router-2"} {
					m.join(id)
					admitted = append(admitted, m.hammer(t.Context(), limits, 8, 10, 5*time.Second, time.Millisecond)...)
				}
				if n := len(admitted); n != 60 { // within 15 s
					t.Errorf("%d, with a limit of 60", n)
				}
			})
		})
	}
}

// A router that has just started does not take the limit for its own before it knows the others.
func TestRouterThatDoesNotKnowTheOthersYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := quota.New("router-1", nil)
		limits := quota.Limits{RequestsPerMinute: 60}
		time.AfterFunc(500*time.Millisecond, func() { l.Routers(map[string]uint64{"router-0": 1, "router-1": 1}) })
		time.AfterFunc(600*time.Millisecond, func() {
			l.Heard(&controlv1.TenantReport{Origin: &controlv1.Origin{Id: "router-0", Epoch: 1, Sequence: 1}, Whole: true,
				Tenants: []*controlv1.TenantUse{{Tenant: "acme", Requests: 59}}})
		})
		var admitted atomic.Int64
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if _, err := l.Admit(t.Context(), "acme", limits, 1); err == nil {
					admitted.Add(1)
				}
			})
		}
		if all.Wait(); admitted.Load() > 1 {
			t.Errorf("%d of the last one were admitted", admitted.Load())
		}
	})
}

// A request does not wait for what a router that comes has to say, but at that one.
func TestNobodyWaitsForARouterThatJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 1)
		m.deafen()
		last := m.join("router-1")
		limits := quota.Limits{RequestsPerMinute: 60}
		began := time.Now()
		if _, err := m.routers[0].Admit(t.Context(), "acme", limits, 1); err != nil || time.Since(began) > 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if _, err := last.Admit(t.Context(), "acme", quota.Limits{PromptTokens: 5}, 1); err != nil || time.Since(began) > 0 {
			t.Errorf("without limits to share: %v after %v", err, time.Since(began))
		}
		if _, err := last.Admit(t.Context(), "acme", limits, 1); err != nil || time.Since(began) < 2*time.Second || time.Since(began) > 4*time.Second {
			t.Errorf("when it has waited long enough: %v after %v", err, time.Since(began))
		}
	})
}

// A request that waits at a router that starts does not wait without an end, and goes when its client does.
func TestWaitForRoutersEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := quota.New("router-0", nil)
		limits := quota.Limits{RequestsPerMinute: 60}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Admit(ctx, "acme", limits, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("its client has gone: %v", err)
		}
		time.AfterFunc(time.Second, func() { l.Routers(map[string]uint64{"router-0": 1, "router-1": 2}) }) // and that is silent
		began := time.Now()
		if _, err := l.Admit(t.Context(), "acme", limits, 1); err != nil || time.Since(began) > 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// What was used where a router has left is used up for a minute, also at one that comes after that.
func TestRouterThatLeavesTakesNothingAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 3)
		<-time.After(joined)
		limits := quota.Limits{RequestsPerMinute: 60, TokensPerMinute: 600}
		admitted := m.hammer(t.Context(), limits, 8, 10, 20*time.Second, time.Millisecond)
		for i := range 2 { // as in a rolling restart
			m.leave(m.routers[0])
			<-time.After(time.Second)
			m.join(fmt.Sprintf("router-%d", 3+i))
			admitted = append(admitted, m.hammer(t.Context(), limits, 8, 10, 10*time.Second, time.Millisecond)...)
		}
		admitted = append(admitted, m.hammer(t.Context(), limits, 8, 10, 2*time.Minute, time.Millisecond)...)
		if n := most(admitted); n > 60 {
			t.Errorf("%d in a minute, with a limit of 60", n)
		}
		if n := len(admitted); n < 120 { // of two minutes and a half
			t.Errorf("%d in all", n)
		}
	})
}

// A report of some tenants says nothing of the others: a router counts as silent until a whole one.
func TestPartOfWhatARouterUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := quota.New("router-0", nil)
		limits := quota.Limits{RequestsPerMinute: 10}
		l.Routers(map[string]uint64{"router-0": 1, "router-1": 2})
		for i, c := range []struct {
			whole bool
			left  int64
		}{{false, 5}, {true, 9}, {false, 9}} {
			l.Heard(&controlv1.TenantReport{
				Origin: &controlv1.Origin{Id: "router-1", Epoch: 2, Sequence: uint64(i + 1)}, Whole: c.whole,
				Tenants: []*controlv1.TenantUse{{Tenant: "acme", Requests: 1}},
			})
			if left := l.Left("acme", limits); left.Requests != c.left {
				t.Errorf("report %d: %d of 10 left, want %d", i, left.Requests, c.left)
			}
		}
	})
}

// More tenants than a report has places for are told in several. Until all have come, those that are
// missing count as they did, and a router that joins waits.
func TestMoreTenantsThanAReportHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 2)
		limits := quota.Limits{RequestsPerMinute: 2}
		tenants := make([]string, 2*4096)
		for i := range tenants {
			tenants[i] = fmt.Sprint("tenant-", i)
			m.routers[0].Count(tenants[i])
			m.routers[0].Count(tenants[i])
		}
		<-time.After(joined)
		for range 60 {
			<-time.After(17 * time.Millisecond)
			let := 0
			for _, tenant := range tenants {
				if m.routers[1].Left(tenant, limits).Requests > 0 {
					let++
				}
			}
			if let > 0 {
				t.Fatalf("%d of %d tenants would get more", let, len(tenants))
			}
		}
		last := m.join("router-2")
		var let atomic.Int64
		var all sync.WaitGroup
		for _, tenant := range tenants {
			all.Go(func() {
				if _, err := last.Admit(t.Context(), tenant, limits, 1); err == nil {
					let.Add(1)
				}
			})
		}
		if all.Wait(); let.Load() > 0 {
			t.Errorf("a router that joins lets %d of %d tenants have more", let.Load(), len(tenants))
		}
	})
}

// A router whose record was away for a moment is counted once.
func TestRouterThatComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := quota.New("router-0", nil)
		limits := quota.Limits{RequestsPerMinute: 10}
		both, alone := map[string]uint64{"router-0": 1, "router-1": 2}, map[string]uint64{"router-0": 1}
		l.Routers(both)
		l.Heard(&controlv1.TenantReport{Origin: &controlv1.Origin{Id: "router-1", Epoch: 2, Sequence: 1}, Whole: true, Tenants: []*controlv1.TenantUse{{Tenant: "acme", Requests: 4}}})
		for _, epochs := range []map[string]uint64{both, alone, both} {
			l.Routers(epochs)
			if left := l.Left("acme", limits); left.Requests != 6 {
				t.Errorf("%v: %d of 10 left", epochs, left.Requests)
			}
		}
		l.Routers(alone)
		<-time.After(time.Minute)
		if left := l.Left("acme", limits); left.Requests != 10 {
			t.Errorf("after a minute: %d of 10 left", left.Requests)
		}
	})
}

// A router that the mesh does not list any more, as one that etcd does not reach, and that tells what it
// uses, counts as before, with what runs. When it is silent, what it used counts for a minute.
func TestRouterThatIsNotListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := quota.New("router-0", nil)
		limits := quota.Limits{RequestsPerMinute: 10, Concurrency: 5}
		sequence := uint64(0)
		tell := func(requests uint64) {
			sequence++
			l.Heard(&controlv1.TenantReport{Origin: &controlv1.Origin{Id: "router-1", Epoch: 2, Sequence: sequence}, Whole: true,
				Tenants: []*controlv1.TenantUse{{Tenant: "acme", Requests: requests, Running: 5}}})
		}
		check := func(when string, left int64, runs bool) {
			t.Helper()
			if got := l.Left("acme", limits).Requests; got != left {
				t.Errorf("%s: %d of 10 left, want %d", when, got, left)
			}
			if over := l.Over("acme", quota.Limits{Concurrency: 5}, quota.Need{}) != nil; over != runs {
				t.Errorf("%s: over the limit %v, want %v", when, over, runs)
			}
		}
		l.Routers(map[string]uint64{"router-0": 1, "router-1": 2})
		tell(4)
		l.Routers(map[string]uint64{"router-0": 1})
		check("as it goes", 6, true)
		for requests := uint64(4); requests < 8; requests++ {
			<-time.After(time.Second)
			tell(requests)
			check("while it tells", 10-int64(requests), true)
		}
		<-time.After(4 * time.Second)
		check("when it is silent", 3, false)
		tell(8)
		check("when it tells again", 2, true)
		<-time.After(4 * time.Second)
		l.Routers(map[string]uint64{"router-0": 1})
		check("when it is silent again", 2, false)
		<-time.After(time.Minute)
		check("after a minute", 10, false)
	})
}

// Routers share a limit with one that loses its lease, from the beginning.
func TestLimitsWhileALeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 2)
		<-time.After(joined)
		m.unlist(m.routers[0])
		admitted := m.hammer(t.Context(), quota.Limits{RequestsPerMinute: 60}, 8, 1, 20*time.Second, time.Millisecond)
		if n := len(admitted); n != 60 {
			t.Errorf("%d, with a limit of 60", n)
		}
	})
}

// What a router uses that loses its lease counts once, there and elsewhere, while it goes on telling, and
// elsewhere also when it tells again after it was silent.
func TestALostLeaseCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 1)
		<-time.After(400 * time.Millisecond)
		lost := m.join("router-1")
		<-time.After(400 * time.Millisecond)
		m.join("router-2")
		<-time.After(joined)
		for range 4 {
			lost.Count("acme")
		}
		<-time.After(joined)
		wrong := func(routers ...*router) (ms int) {
			for range 3000 {
				<-time.After(time.Millisecond)
				for _, r := range routers {
					if left := r.Left("acme", quota.Limits{RequestsPerMinute: 10}); left.Requests != 6 {
						ms++
						break
					}
				}
			}
			return ms
		}
		m.unlist(lost)
		if ms := wrong(m.routers...); ms > 0 {
			t.Errorf("wrong for %d ms when its lease is lost", ms)
		}
		m.silence(lost, true)
		<-time.After(10 * time.Second)
		m.silence(lost, false)
		if ms := wrong(m.routers[0], m.routers[2]); ms > 100 {
			t.Errorf("wrong for %d ms when it tells again", ms)
		}
	})
}

func TestRefusalSaysWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := quota.New("router", nil)
		l.Routers(nil)
		limits := quota.Limits{RequestsPerMinute: 2, TokensPerMinute: 100}
		for range 2 {
			if _, err := l.Admit(t.Context(), "acme", limits, 10); err != nil {
				t.Fatal(err)
			}
			<-time.After(10 * time.Second)
		}
		_, err := l.Admit(t.Context(), "acme", limits, 10)
		exceeded, is := errors.AsType[*quota.Exceeded](err)
		if !is || exceeded.What != "requests" || exceeded.Limit != 2 || exceeded.RetryAfter < 40*time.Second || exceeded.RetryAfter > 41*time.Second {
			t.Fatalf("%+v", err)
		}
		if _, err := l.Admit(t.Context(), "other", limits, 10); err != nil {
			t.Errorf("another tenant: %v", err)
		}
		<-time.After(exceeded.RetryAfter)
		if _, err := l.Admit(t.Context(), "acme", limits, 10); err != nil {
			t.Error(err)
		}
	})
}

// What takes no place and no tokens is held to the limit of requests alone, and what is only counted
// can go past it.
func TestRequestsWithoutTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := quota.New("router", nil)
		l.Routers(nil)
		limits := quota.Limits{RequestsPerMinute: 3, TokensPerMinute: 10, Concurrency: 1}
		if _, err := l.Admit(t.Context(), "acme", limits, 10); err != nil {
			t.Fatal(err)
		}
		for i, want := range []bool{true, true, false} {
			if err := l.Spend("acme", limits); (err == nil) != want {
				t.Errorf("the %dth beside the one that runs: %v", i+1, err)
			}
		}
		for over := range 3 {
			if err := l.Past("acme", limits, 2); (err == nil) != (over < 2) {
				t.Errorf("%d over the limit: %v", over, err)
			}
			l.Count("acme")
		}
		if err := errors.Join(l.Spend("acme", quota.Limits{}), l.Past("acme", quota.Limits{TokensPerMinute: 1}, 0)); err != nil {
			t.Errorf("without a limit of requests: %v", err)
		}
		l.Routers(map[string]uint64{"router": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1}) // of which none is heard
		if err := l.Past("other", limits, 2); err != nil {
			t.Errorf("a tenant that has had none here: %v", err)
		}
		if err := l.Spend("other", limits); err == nil {
			t.Error("others count as if they had used their share")
		}
	})
}

func TestTokensThatWereNotUsedAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := quota.New("router", nil)
		l.Routers(nil)
		limits := quota.Limits{TokensPerMinute: 100}
		charge, err := l.Admit(t.Context(), "acme", limits, 90)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Admit(t.Context(), "acme", limits, 20); err == nil {
			t.Fatal("110 tokens, with a limit of 100")
		}
		charge.Done(30)
		charge.Done(0) // which counts no more
		if left := l.Left("acme", limits); left.Tokens != 70 || left.TokensReset > 61*time.Second {
			t.Errorf("%+v", left)
		}
		if _, err := l.Admit(t.Context(), "acme", limits, 70); err != nil {
			t.Error(err)
		}
	})
}

func TestForgedReportsCountForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := quota.New("router-0", nil)
		l.Routers(map[string]uint64{"router-0": 1, "router-1": 2})
		use := []*controlv1.TenantUse{{Tenant: "acme", Requests: 1 << 63, Running: 1 << 63}}
		limits := quota.Limits{RequestsPerMinute: 10}
		l.Heard(&controlv1.TenantReport{Origin: &controlv1.Origin{Id: "router-1", Epoch: 2, Sequence: 5}, Whole: true})
		for _, origin := range []*controlv1.Origin{
			{Id: "router-1", Epoch: 3, Sequence: 9}, {Id: "stranger", Epoch: 2, Sequence: 9}, {Id: "router-1", Epoch: 2, Sequence: 5}, {Id: "router-0", Epoch: 1, Sequence: 9},
		} {
			l.Heard(&controlv1.TenantReport{Origin: origin, Tenants: use})
		}
		if left := l.Left("acme", limits); left.Requests != 10 {
			t.Errorf("%d of 10 left", left.Requests)
		}
		l.Heard(&controlv1.TenantReport{Origin: &controlv1.Origin{Id: "router-1", Epoch: 2, Sequence: 6}, Tenants: use})
		if left := l.Left("acme", limits); left.Requests != 0 {
			t.Errorf("%d of 10 left", left.Requests)
		}
	})
}

// Whatever is said in the name of another router, what is left is between nothing and the limit, and
// a tenant that nobody speaks of is let in.
func FuzzHeard(f *testing.F) {
	for _, whole := range []bool{true, false} {
		b, err := proto.Marshal(&controlv1.TenantReport{Whole: whole, Tenants: []*controlv1.TenantUse{
			{Tenant: "acme", Requests: 1 << 63, Tokens: 7, Running: 1}, {Tenant: "", LeftRequests: 1 << 48, LeftTokens: 1<<64 - 1},
		}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, b)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		l := quota.New("router-0", nil)
		l.Routers(map[string]uint64{"router-0": 1, "router-1": 2, "router-2": 3})
		named := map[string]bool{"nobody": true, "": true, "acme": true}
		limits := quota.Limits{RequestsPerMinute: 1 << 48, TokensPerMinute: 10, Concurrency: 3}
		for i, b := range [][]byte{first, second} {
			report := &controlv1.TenantReport{}
			if proto.Unmarshal(b, report) != nil {
				continue
			}
			report.Origin = &controlv1.Origin{Id: "router-1", Epoch: 2, Sequence: uint64(i + 1)}
			l.Heard(report)
			for _, use := range report.GetTenants() {
				named[use.GetTenant()] = true
			}
		}
		for tenant := range named {
			l.Count(tenant)
			if left := l.Left(tenant, limits); min(left.Requests, left.Tokens) < 0 || left.Requests > 1<<48 || left.Tokens > 10 || min(left.RequestsReset, left.TokensReset) < 0 {
				t.Errorf("%q has %+v left", tenant, left)
			}
			for _, err := range []error{l.Over(tenant, limits, quota.Need{}), l.Spend(tenant, limits), l.Past(tenant, limits, 1)} {
				exceeded, is := errors.AsType[*quota.Exceeded](err)
				if is != (err != nil) || is && exceeded.RetryAfter <= 0 {
					t.Errorf("%q: %+v", tenant, err)
				}
			}
		}
	})
}
