package finetimer_test

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/loadtest/finetimer"
)

// A timer with an unreadable descriptor still waits, can be woken, and does not spin.
func TestWaitWithoutTheDescriptor(t *testing.T) {
	timer := finetimer.NewSpinning()
	if err := timer.Close(); err != nil { // as if it were broken
		t.Fatal(err)
	}
	cpu := func() time.Duration {
		var used unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
			t.Fatal(err)
		}
		return time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	const wait = 400 * time.Millisecond
	before, until := cpu(), time.Now().Add(wait)
	timer.Wait(until)
	if early := time.Until(until); early > 0 {
		t.Errorf("woke %s early", early)
	}
	if used := cpu() - before; used > wait/2 {
		t.Errorf("a wait of %s took %s of the processor", wait, used)
	}
	done := make(chan struct{})
	go func() {
		timer.Wait(time.Now().Add(time.Hour))
		close(done)
	}()
	timer.Wake()
	<-done
}
