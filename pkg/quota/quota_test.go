package quota_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/quota"
)

// mesh is routers that tell each other what they use, a few milliseconds late.
type mesh struct {
	limiters []*quota.Limiter
	deaf     bool // nobody hears of another
	late     sync.WaitGroup
}

// newMesh runs routers until the test ends.
func newMesh(t *testing.T, routers int) *mesh {
	ctx, cancel := context.WithCancel(t.Context())
	m := &mesh{}
	t.Cleanup(func() {
		cancel()
		m.late.Wait()
	})
	epochs := map[string]uint64{}
	for i := range routers {
		id := fmt.Sprintf("router-%d", i)
		epochs[id] = uint64(i + 1)
		m.limiters = append(m.limiters, quota.New(id))
	}
	for i, l := range m.limiters {
		l.Routers(epochs)
		sequence := uint64(0)
		m.late.Go(func() {
			l.Run(ctx, func(r *controlv1.TenantReport) {
				sequence++
				sent := proto.CloneOf(r)
				sent.Origin = &controlv1.Origin{Id: fmt.Sprintf("router-%d", i), Epoch: uint64(i + 1), Sequence: sequence}
				m.late.Go(func() {
					<-time.After(3 * time.Millisecond)
					for j, other := range m.limiters {
						if j != i && !m.deaf {
							other.Heard(sent)
						}
					}
				})
			})
		})
	}
	return m
}

// hammer asks at all routers as often as it may for a while, and returns the admissions.
func (m *mesh) hammer(ctx context.Context, limits quota.Limits, each, tokens int64, forHowLong, runs time.Duration) []time.Time {
	var mu sync.Mutex
	var admitted []time.Time
	var wait sync.WaitGroup
	end := time.Now().Add(forHowLong)
	for i, l := range m.limiters {
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
					<-time.After(2 * time.Second) // they have heard of each other
					limits := quota.Limits{RequestsPerMinute: c.limit}
					if what == "tokens" {
						limits = quota.Limits{TokensPerMinute: c.limit * c.tokens}
					}
					const minutes = 3
					admitted := m.hammer(t.Context(), limits, 8, c.tokens, minutes*time.Minute, time.Millisecond)
					if n := most(admitted); n > int(float64(c.limit)*1.05) {
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
		<-time.After(2 * time.Second)
		const limit, runs = 40, time.Second
		admitted := m.hammer(t.Context(), quota.Limits{Concurrency: limit}, 30, 10, 20*time.Second, runs)
		for i, from := range admitted {
			n := 0
			for _, at := range admitted[i:] {
				if at.Sub(from) < runs {
					n++
				}
			}
			if n > limit*105/100 {
				t.Fatalf("%d run at a time, with a limit of %d", n, limit)
			}
		}
		if n := len(admitted); n < limit*20*8/10 {
			t.Errorf("%d requests of a second ran in 20 s, with %d at a time", n, limit)
		}
	})
}

// Without NATS each router serves its share.
func TestRoutersThatHearNothingServeTheirShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 4)
		m.deaf = true
		admitted := m.hammer(t.Context(), quota.Limits{RequestsPerMinute: 60}, 4, 1, 59*time.Second, 0)
		if n := len(admitted); n != 60 {
			t.Errorf("%d, want 60", n)
		}
	})
}

// A burst at one of several routers is not refused while the tenant is within its limits.
func TestBurstAtOneRouter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, 4)
		<-time.After(2 * time.Second)
		var wait sync.WaitGroup
		for range 50 {
			wait.Go(func() {
				if _, err := m.limiters[0].Admit(t.Context(), "acme", quota.Limits{RequestsPerMinute: 60}, 1); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
	})
}

func TestRefusalSaysWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := quota.New("router")
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

func TestTokensThatWereNotUsedAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := quota.New("router")
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
		l := quota.New("router-0")
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
