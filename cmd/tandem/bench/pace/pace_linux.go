package pace

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// precise waits for a read of a timerfd, whose deadline is the same moment by Go's
// clock: whichever comes first ends it.
type precise struct {
	file *os.File
	fd   int
	read [8]byte

	mu sync.Mutex
	// waiting: a read runs, which Wake has to end. woken: a Wake came that no Wait has
	// seen yet.
	waiting, woken bool
}

func newPrecise() Timer {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil // a sandbox without timerfd: the portable timer does
	}
	return &precise{file: os.NewFile(uintptr(fd), "timerfd"), fd: fd}
}

func (p *precise) Wait(until time.Time) {
	left := time.Until(until)
	p.mu.Lock()
	if p.woken || left <= 0 {
		p.woken = false
		p.mu.Unlock()
		return
	}
	p.waiting = true
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(left))}
	// Setting it also forgets an expiry that was not read.
	_ = unix.TimerfdSettime(p.fd, 0, &spec, nil) // fails only for wrong arguments; Go's clock still runs
	_ = p.file.SetReadDeadline(until)
	p.mu.Unlock()
	_, err := p.file.Read(p.read[:])
	p.mu.Lock()
	p.waiting, p.woken = false, false
	p.mu.Unlock()
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		// Without a read that blocks, wait by Go's clock: a loop must not spin.
		timer := time.NewTimer(min(left, 100*time.Millisecond))
		<-timer.C
	}
}

// past is a deadline that is over whatever the clock says.
var past = time.Unix(1, 0)

func (p *precise) Wake() {
	p.mu.Lock()
	p.woken = true
	if p.waiting {
		_ = p.file.SetReadDeadline(past)
	}
	p.mu.Unlock()
}

func (p *precise) Close() error { return p.file.Close() }
