package workerdriver_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// losing is an engine whose device is lost after some steps.
type losing struct {
	engine.Engine
	steps int
}

func (l *losing) Step(ctx context.Context, batch engine.Batch) (engine.Output, error) {
	if l.steps--; l.steps < 0 {
		return engine.Output{}, fmt.Errorf("step: %w", engine.ErrDeviceLost)
	}
	return l.Engine.Step(ctx, batch)
}

// A worker whose device is lost fails what it runs, takes nothing new, says that it drains
// and ends.
func TestMemberWithoutItsDeviceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := workerdriver.NewMember(memberConfig(controlv1.Role_ROLE_DECODE, &losing{newEngine(t, latency.Model{BaseMs: 10}), 5}))
		if err != nil {
			t.Fatal(err)
		}
		r := new(registration)
		m.Join(r.register)
		ended := make(chan error, 1)
		go func() { ended <- m.Run(t.Context()) }()
		running := []*workerdriver.Sequence{
			m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Tokens: prompt(9), MaxTokens: 30}),
			m.Driver().Submit(scheduler.Request{ID: m.Driver().Reserve(), Tokens: prompt(40), MaxTokens: 30}),
		}
		for i, s := range running {
			var got result
			got.read(t, s, false)
			if got.finished == nil || !errors.Is(got.finished.Err, engine.ErrDeviceLost) {
				t.Errorf("sequence %d ended with %+v", i, got.finished)
			}
		}
		select {
		case err := <-ended:
			if !errors.Is(err, engine.ErrDeviceLost) {
				t.Errorf("Run ended with %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("it goes on without its device")
		}
		r.check(t, registered, draining)
	})
}
