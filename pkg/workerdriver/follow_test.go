package workerdriver_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// panicking carries out what it is asked for, but panics once.
type panicking struct {
	driver *workerdriver.Driver
	at     string // a type of action, or "a flush" after tokens
	tokens bool
}

func (p *panicking) now(at string) {
	if p.at == at {
		p.at = ""
		panic(at)
	}
}

func (p *panicking) Carry(action worker.Action) error {
	p.now(fmt.Sprintf("%T", action))
	switch a := action.(type) {
	case *scheduler.Sampled:
		p.tokens = true
	case worker.ReserveKV:
		p.driver.Handle(a.ID, worker.Reserved{ID: a.ID})
	case worker.CancelKV:
		p.driver.Handle(a.ID, worker.Drained(a))
	case worker.OpenTransfer:
		p.driver.Handle(a.ID, worker.Opened(a))
	case worker.Fetch:
		p.driver.Handle(a.ID, worker.Fetched{ID: a.ID})
	case worker.Commit:
		p.driver.Handle(a.ID, worker.Sent{ID: a.ID})
	case worker.Abort:
		p.driver.Handle(a.ID, worker.Sent{ID: a.ID, Err: errors.New("the network is down")})
	}
	return nil
}

func (p *panicking) Flush() error {
	if p.tokens {
		p.now("a flush")
	}
	return nil
}

// Wherever a service panics, nothing of its sequence is left on the worker.
func TestFollowPanics(t *testing.T) {
	for _, c := range []struct {
		kind scheduler.Kind
		at   string
	}{
		{scheduler.Receive, "worker.ReserveKV"},
		{scheduler.Receive, "worker.SendDecode"},
		{scheduler.Full, "worker.SendDecode"},
		{scheduler.Full, "*scheduler.Sampled"},
		{scheduler.Full, "a flush"},
		{scheduler.PrefillOnly, "worker.OpenTransfer"},
		{scheduler.PrefillOnly, "worker.Fetch"},
		{scheduler.PrefillOnly, "worker.SendPrefill"},
		{scheduler.PrefillOnly, "worker.Commit"},
	} {
		t.Run(fmt.Sprint(c.kind, " ", c.at), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, _ := start(t, newEngine(t, latency.Model{BaseMs: 1}), controlv1.Role_ROLE_DECODE, nil)
				d := m.Driver()
				request := scheduler.Request{ID: d.Reserve(), Kind: c.kind, Tokens: []int32{3, 4, 5}, MaxTokens: 2}
				var s *workerdriver.Sequence
				if c.kind == scheduler.PrefillOnly {
					s = d.Prefill(worker.Prefill{Request: request, Fetch: true})
				} else {
					s = d.Generate(worker.Generate{Request: request})
				}
				func() {
					defer func() {
						if got := recover(); got != c.at {
							t.Errorf("panicked with %v, want %v", got, c.at)
						}
					}()
					_ = s.Follow(t.Context(), &panicking{driver: d, at: c.at})
				}()
				if err := d.Idle(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
