package workerdriver_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

const serving = "update WORKER_STATE_SERVING"

// A drain that is taken back while something runs ends nothing and leaves the record.
func TestUndrainWhileItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newEngine(t, latency.Model{BaseMs: 10}), controlv1.Role_ROLE_DECODE, nil)
		r := new(registration)
		m.Join(r.register)
		s := m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Tokens: prompt(9), MaxTokens: 100})
		m.Leave(500 * time.Millisecond)
		time.Sleep(100 * time.Millisecond)
		if err := m.Undrain(t.Context()); err != nil {
			t.Fatal(err)
		}
		var running, late result
		running.read(t, s, false)
		if running.finished.Reason != scheduler.Length {
			t.Errorf("what ran ended with %v", running.finished.Reason)
		}
		late.read(t, m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Tokens: prompt(9), MaxTokens: 3}), false)
		if late.refused != nil || late.finished.Reason != scheduler.Length {
			t.Errorf("the next one: %+v", late)
		}
		time.Sleep(5 * time.Second)
		r.check(t, registered, draining, serving)
		m.Drain(t.Context(), time.Second)
		r.check(t, registered, draining, serving, draining, closed)
	})
}

// A worker that was idle, and whose record is gone, registers again.
func TestUndrainAfterItLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newEngine(t, latency.Model{BaseMs: 10}), controlv1.Role_ROLE_DECODE, nil)
		r := new(registration)
		m.Join(r.register)
		var want []string
		for range 3 {
			m.Leave(0)
			time.Sleep(5 * time.Second)
			want = append(want, registered, draining, closed)
			r.check(t, want...)
			if err := errors.Join(m.Undrain(t.Context()), m.Undrain(t.Context())); err != nil { // the second does nothing
				t.Fatal(err)
			}
		}
		r.check(t, append(want, registered)...)
		var late result
		late.read(t, m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Tokens: prompt(9), MaxTokens: 3}), false)
		if late.finished.Reason != scheduler.Length {
			t.Errorf("after it: %+v", late)
		}
		m.Drain(t.Context(), time.Second)
		if err := m.Undrain(t.Context()); !errors.Is(err, membership.ErrEnds) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// A worker that had left before it joined is registered by what takes that back.
func TestUndrainBeforeJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newEngine(t, latency.Model{}), controlv1.Role_ROLE_DECODE, nil)
		m.Leave(0)
		time.Sleep(5 * time.Second)
		r := new(registration)
		m.Join(r.register)
		r.check(t)
		if err := m.Undrain(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.check(t, registered)
	})
}
