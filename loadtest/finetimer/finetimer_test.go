package finetimer_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/loadtest/finetimer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func timers() map[string]func() finetimer.Timer {
	return map[string]func() finetimer.Timer{"portable": finetimer.Portable, "new": finetimer.New, "spinning": finetimer.NewSpinning}
}

func TestWaitIsNeverEarly(t *testing.T) {
	for name, build := range timers() {
		timer := build()
		for _, wait := range []time.Duration{-time.Second, 0, time.Microsecond, 300 * time.Microsecond, 3 * time.Millisecond, 7 * time.Millisecond} {
			until := time.Now().Add(wait)
			timer.Wait(until)
			if early := time.Until(until); early > 0 {
				t.Errorf("%s: woke %s early of a wait of %s", name, early, wait)
			}
		}
		if err := timer.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWakeEndsAWait(t *testing.T) {
	for name, build := range timers() {
		timer := build()
		far := time.Now().Add(time.Hour)
		timer.Wake()
		timer.Wait(far) // the Wake from before
		for range 100 {
			done := make(chan struct{})
			go func() {
				timer.Wait(far)
				close(done)
			}()
			timer.Wake()
			<-done
		}
		if err := timer.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The end of a context ends the current wait but no later one.
func TestWaitWithAContext(t *testing.T) {
	for name, build := range timers() {
		timer := build()
		for range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- finetimer.Wait(ctx, timer, time.Hour) }()
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Fatalf("%s: %v", name, err)
			}
			until := time.Now().Add(100 * time.Microsecond)
			if err := finetimer.Wait(t.Context(), timer, time.Until(until)); err != nil || time.Until(until) > 0 {
				t.Fatalf("%s: %v, %s early", name, err, time.Until(until))
			}
			if err := finetimer.Wait(ctx, timer, 0); !errors.Is(err, context.Canceled) {
				t.Fatalf("%s: no time to wait: %v", name, err)
			}
		}
		if err := timer.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPortableIsExactOnVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		timer := finetimer.Portable()
		until := time.Now().Add(1234567 * time.Nanosecond)
		timer.Wait(until)
		if !time.Now().Equal(until) {
			t.Errorf("woke at %s, want %s", time.Now(), until)
		}
	})
}
