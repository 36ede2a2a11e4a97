package mesh_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/engine"
)

// What does not end in the time that it is given is left behind, and what ends is not hurt.
func TestStuck(t *testing.T) {
	given, own := errors.New("given up"), errors.New("its own")
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		began := time.Now()
		err := mesh.UnlessStuck(time.Minute, given, func() error { <-end; return own })
		if took := time.Since(began); !errors.Is(err, given) || took != time.Minute {
			t.Errorf("stuck: %v after %v", err, took)
		}
		close(end)
		if err := mesh.UnlessStuck(time.Minute, given, func() error { time.Sleep(59 * time.Second); return own }); !errors.Is(err, own) {
			t.Errorf("slow: %v", err)
		}
		time.Sleep(time.Hour) // timers that are left find nobody
	})
}

// losing is an engine whose device a call can find lost.
type losing chan struct{}

func (l losing) Lost() <-chan struct{} { return l }

// A call that never returns keeps no process whose device is lost, whoever noticed that.
func TestStuckOnceLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost, end := make(losing), make(chan struct{})
		time.AfterFunc(time.Hour, func() { close(lost) })
		began := time.Now()
		err := mesh.UnlessLost(time.Minute, lost, func() error { <-end; return nil })
		if took := time.Since(began); !errors.Is(err, engine.ErrDeviceLost) || took != time.Hour+time.Minute {
			t.Errorf("stuck: %v after %v", err, took)
		}
		close(end)
		if err := mesh.UnlessLost(time.Minute, make(losing), func() error { return nil }); err != nil {
			t.Error(err)
		}
	})
}
